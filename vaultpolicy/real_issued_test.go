//go:build linux

package vaultpolicy

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/policies"
)

// mount an engine for a test, as its admin does.
func (x *site) mount(t testing.TB, engine string) string {
	t.Helper()
	path := x.Prefix() + engine
	if err := x.root.Sys().MountWithContext(t.Context(), path, &api.MountInput{Type: engine}); err != nil {
		t.Fatal(err)
	}
	return path
}

// write as the admin.
func (x *site) write(t testing.TB, path string, body map[string]any) map[string]any {
	t.Helper()
	s, err := x.root.Logical().WriteWithContext(t.Context(), path, body)
	if err != nil {
		t.Fatal(err)
	}
	if s == nil {
		return nil
	}
	return s.Data
}

// issues is a grant of a credential that an engine issues, and of one that is stored.
type issues struct {
	*site
	v      *Vault
	from   *issued.From
	grant  authority.Grant
	sealed []byte
	hidden []secret.Value // what was issued so far
	log    lines
}

const issuedName = "issued.thing"

// issuing opens what an engine issues and makes a grant of it.
func (x *site) issuing(t *testing.T, from *issued.From) *issues {
	t.Helper()
	if p := from.Problems(); len(p) > 0 {
		t.Fatal(p)
	}
	i := &issues{site: x, from: from}
	x.scope.Issued = map[string]*issued.From{issuedName: from}
	i.grant = authoritytest.NewGrant("weather", issuedName)
	x.cfg.Tenants = append(x.cfg.Tenants, i.grant.Tenant.String())
	x.scope.Credentials = append(x.scope.Credentials, issuedName)
	x.open(t, i.grant.Tenant, "weather")
	v, err := New(Params{Config: x.cfg, Trust: x.keys, Log: slog.New(slog.NewTextHandler(&i.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	i.v = v
	x.runs(t, v)
	if err := v.PutCredential(t.Context(), i.grant.Tenant, "weather", authoritytest.Seal(t, v, "weather", authoritytest.Value)); err != nil {
		t.Fatal(err)
	}
	if i.sealed, err = v.CreateGrant(t.Context(), i.grant); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // INV-17
		text := i.log.String()
		if t.Failed() {
			t.Log(text)
		}
		if secret.NewRedactor(i.hidden...).Found(text) || strings.Contains(text, "hvs.") || strings.Contains(text, "hvb.") {
			t.Error("the log holds what was issued, or a token")
		}
	})
	return i
}

// issue once. What came is remembered, so that nothing shows it.
func (i *issues) issue(t *testing.T) (issued.Credential, error) {
	t.Helper()
	c, err := i.v.Issue(t.Context(), authoritytest.Use(i.grant, i.sealed, issuedName), i.from)
	if err == nil && c.SignFunc != nil { // it is used by being asked
		if _, err = c.SignFunc(t.Context(), []byte("a text")); err != nil {
			c = issued.Credential{}
		}
	}
	i.hidden = append(i.hidden, c.Hidden()...)
	if err != nil && (!c.IsZero() || c.ReturnFunc != nil) {
		t.Error("something is issued beside an error")
	}
	return c, err
}

func (i *issues) issued(t *testing.T) issued.Credential {
	t.Helper()
	c, err := i.issue(t)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// refuses expects an issue to fail with a code and words, and that what is stored
// works all the same: exactly the named feature fails.
func (i *issues) refuses(t *testing.T, what string, code protocol.Code, words ...string) {
	t.Helper()
	_, err := i.issue(t)
	codeIs(t, what, err, code)
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v does not say %q", what, err, w)
		}
	}
	if err != nil && secret.NewRedactor(i.hidden...).Found(err.Error()) {
		t.Errorf("%s: the error holds what was issued", what)
	}
	if err := mints(t, i.v, i.grant, i.sealed); err != nil {
		t.Errorf("%s: what is stored fails too: %v", what, err)
	}
}

func (i *issues) policyName() string {
	return i.v.names.UsePolicy(policies.Credential{Tenant: i.grant.Tenant, Name: issuedName})
}

// withoutRight deletes one right of the credential's policy, and puts it back.
func (i *issues) withoutRight(t *testing.T, path string, during func()) {
	t.Helper()
	whole := i.policy(t, i.policyName())
	cut := strings.Replace(whole, `path "`+path, `path "nothing/`, 1)
	if cut == whole {
		t.Fatalf("no right on %s in %s", path, whole)
	}
	i.putPolicy(t, i.policyName(), cut)
	during()
	i.putPolicy(t, i.policyName(), whole)
}

// allRefusals of what every engine has in common: a right that is missing, a tenant
// that is not meant, another's grant, an engine of Bivouac's own, a grant that ended.
// Its positive twin is the issue at the beginning and between them.
func (i *issues) allRefusals(t *testing.T, path string) {
	t.Helper()
	i.issued(t).Return(t.Context())
	i.withoutRight(t, path, func() {
		i.refuses(t, "without the right", protocol.CodeFailedPrecondition, issuedName, i.policyName(), "bivouac vault setup --apply")
	})
	i.issued(t).Return(t.Context())

	whole := i.from
	narrow := *whole
	narrow.Tenants = []string{authoritytest.NewGrant().Tenant.String()}
	i.from = &narrow
	i.refuses(t, "another's tenant", protocol.CodePermissionDenied, "not for tenant")
	if err := i.v.Opened(t.Context(), i.grant.Tenant, issuedName, &narrow); protocol.CodeOf(err) != protocol.CodePermissionDenied {
		t.Errorf("opened: %v", err)
	}
	for _, mount := range []string{i.v.names.Grants, i.v.names.Credentials, i.v.names.Transit} {
		ours := *whole
		ours.Mount = mount
		i.from = &ours
		i.refuses(t, "Bivouac's own "+mount, protocol.CodeInvalidArgument, mount)
	}
	i.from = whole
	if err := i.v.Opened(t.Context(), i.grant.Tenant, issuedName, whole); err != nil {
		t.Errorf("opened: %v", err)
	}
	other := i.grant
	other.Principal = authoritytest.NewGrant().Principal
	if _, err := i.v.Issue(t.Context(), authoritytest.Use(other, i.sealed, issuedName), whole); protocol.CodeOf(err) != protocol.CodePermissionDenied {
		t.Errorf("another person's grant: %v", err)
	}
	i.issued(t).Return(t.Context())
}

// revokedRefuses ends the grant as an admin does: nothing more is issued.
func (i *issues) revokedRefuses(t *testing.T) {
	t.Helper()
	i.revoke(t, i.grant)
	_, err := i.issue(t)
	codeIs(t, "after the grant's end", err, protocol.CodePermissionDenied)
}

// waits for what a server does beside its answers.
func waits(t *testing.T, what string, is func() error) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(fmt.Errorf("%s: %w", what, err))
		}
	}
}

var errStill = errors.New("it is still there")
