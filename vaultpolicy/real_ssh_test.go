//go:build linux

package vaultpolicy

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/ssh"
	"bivouac/server/broker/ssh/sshtest"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// sshEngine is a block whose engine setup makes.
func (x *site) sshEngine() *issued.From {
	return (&issued.From{Engine: issued.SSH, Mount: x.Prefix() + "ssh", Role: "agents", Principals: []string{"deploy"}, Setup: true}).WithDefaults()
}

// authority that an engine signs with.
func (x *site) sshAuthority(t *testing.T, from *issued.From) gossh.PublicKey {
	t.Helper()
	s, err := x.root.Logical().ReadWithContext(t.Context(), from.Mount+"/config/ca")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := issued.PublicKeys([]string{s.Data["public_key"].(string)})
	if err != nil {
		t.Fatal(err)
	}
	return keys[0]
}

const uptime = "uptime -p"

// signs in for a command.
func (i *issues) signs(t *testing.T, command string) (issued.Credential, error) {
	t.Helper()
	u := authoritytest.Use(i.grant, i.sealed, issuedName)
	u.Command, u.Session, u.Action = command, "ses_1", "act_1"
	return i.v.Issue(t.Context(), u, i.from)
}

// Setup makes the engine, and nothing differs afterwards. What it signs is for one
// action: a key of the broker's, one command, one minute, nothing beside it; a host that
// trusts the engine runs exactly that. After the grant's end nothing is signed.
func TestSSHIssues(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		from := x.sshEngine()
		i := x.issuing(t, from)
		if n := i.setup(t); n != 0 {
			t.Errorf("%d things differ after the setup", n)
		}
		from.CAKeys = []string{sshtest.Line(i.sshAuthority(t, from))}
		c, err := i.signs(t, uptime)
		if err != nil {
			t.Fatal(err)
		}
		cert := c.Signer.PublicKey().(*gossh.Certificate)
		if cert.CriticalOptions["force-command"] != uptime || len(cert.Extensions) != 0 || cert.KeyId != "bivouac tenant="+i.grant.Tenant.String()+" session=ses_1 action=act_1" ||
			time.Until(time.Unix(int64(cert.ValidBefore), 0)) > time.Minute+time.Second {
			t.Errorf("%+v", cert)
		}
		again, err := i.signs(t, uptime)
		if err != nil || string(again.Signer.PublicKey().(*gossh.Certificate).Key.Marshal()) == string(cert.Key.Marshal()) {
			t.Errorf("two actions share a key: %v", err)
		}
		h := &sshtest.Host{Key: sshtest.NewKey(t), Authority: i.sshAuthority(t, from)}
		if body := runsAt(t, h, c.Signer, "deploy"); body != "exit status 0" || h.Ran()[0].Command != uptime {
			t.Errorf("%q %+v", body, h.Ran())
		}
		if _, err := i.signs(t, ""); protocol.CodeOf(err) != protocol.CodePolicyDenied {
			t.Errorf("without a command: %v", err)
		}
		i.revoke(t, i.grant)
		_, err = i.signs(t, uptime)
		codeIs(t, "after the grant's end", err, protocol.CodePermissionDenied)
	})
}

// runsAt a host as the broker does.
func runsAt(t *testing.T, h *sshtest.Host, signer gossh.Signer, user string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); h.Serve(ln) }()
	defer func() { ln.Close(); <-done }()
	base, err := ssh.CheckURL("ssh://" + ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	e := ssh.New(ssh.Config{Name: "h", User: user, HostKeys: []gossh.PublicKey{h.Key.PublicKey()}, Credentials: []string{issuedName},
		Commands: map[string]ssh.Command{"up": {Run: []string{"uptime", "-p"}, Timeout: time.Minute}}, Reach: egress.Config{Name: "h", Base: base, AllowPrivate: true}})
	r, err := e.Prepare(ssh.Call{Arguments: []byte(`{}`), Tool: &brokerv1.HttpTool{Destination: "h", Credential: issuedName, Ssh: &brokerv1.SshCall{Command: "up"}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Open(t.Context(), signer)
	if err != nil {
		return err.Error()
	}
	defer s.Close()
	a, err := s.Run(context.WithoutCancel(t.Context()))
	if err != nil {
		return err.Error()
	}
	return string(a.Body)
}

// What an engine of SSH may lack or give too much: exactly this credential fails, by
// name, and is well again when its admin mends it. A certificate that is wider than what
// was asked for is never used.
func TestSSHCannotIssue(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		from := x.sshEngine()
		i := x.issuing(t, from)
		whole, err := x.root.Logical().ReadWithContext(t.Context(), from.RolePath())
		if err != nil {
			t.Fatal(err)
		}
		role := func(change map[string]any) {
			t.Helper()
			body := map[string]any{}
			for k, v := range whole.Data {
				body[k] = v
			}
			for k, v := range change {
				body[k] = v
			}
			x.write(t, from.RolePath(), body)
		}
		good := func(what string) {
			t.Helper()
			role(nil)
			if _, err := i.signs(t, uptime); err != nil {
				t.Errorf("after %s: %v", what, err)
			}
		}
		good("nothing")
		x.scope.Issued = map[string]*issued.From{issuedName: from}
		look := func() []string {
			r := finding.From("here")
			File{Config: x.cfg, Scope: x.scope}.ExamineEngines(t.Context(), r, x.client, x.token)
			return worst(r)
		}
		if found := look(); len(found) > 0 {
			t.Errorf("a sound engine: %v", found)
		}
		for name, c := range map[string]struct {
			change map[string]any
			says   string // of the refusal; empty: it is issued all the same
			finds  string
		}{
			"a terminal":          {map[string]any{"allowed_extensions": "permit-pty", "default_extensions": map[string]any{"permit-pty": ""}}, "too wide: it has permit-pty", "gives every certificate permit-pty"},
			"what could be asked": {map[string]any{"allowed_extensions": "permit-pty"}, "", "lets whoever signs ask for permit-pty"},
			"another principal":   {map[string]any{"allowed_users": "backup"}, "the ssh role agents at", "does not sign for the principals deploy"},
			"no options":          {map[string]any{"allowed_critical_options": "source-address", "default_critical_options": map[string]any{}}, "the ssh role agents at", "binds no certificate to a command"},
			"no name":             {map[string]any{"allow_user_key_ids": false}, "the ssh role agents at", "lets nobody name the action"},
			"no users":            {map[string]any{"allow_user_certificates": false, "allow_host_certificates": true, "allowed_domains": "example"}, "the ssh role agents at", "signs no certificates of users"},
			"long":                {map[string]any{"ttl": "1h", "max_ttl": "24h"}, "", "signs for longer than 15m"},
			"unbound":             {map[string]any{"default_critical_options": map[string]any{}}, "", "binds a certificate that asks for nothing to no command"},
			"hosts too":           {map[string]any{"allow_host_certificates": true, "allowed_domains": "example"}, "", "signs certificates of hosts too"},
		} {
			role(c.change)
			_, err := i.signs(t, uptime)
			if (c.says == "") != (err == nil) || err != nil && (protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), issuedName)) {
				t.Errorf("%s: %v", name, err)
			}
			if found := look(); len(found) != 1 || !strings.Contains(found[0], c.finds) {
				t.Errorf("%s: found %v", name, found)
			}
			good(name)
		}
		if n := x.setup(t); n != 0 {
			t.Errorf("%d things differ from the setup", n)
		}
		other := *from
		other.CAKeys = []string{sshtest.Line(sshtest.NewKey(t).PublicKey())}
		i.from, x.scope.Issued[issuedName] = &other, &other
		if _, err := i.signs(t, uptime); err == nil || !strings.Contains(err.Error(), "ca_keys does not have") {
			t.Errorf("another key of the engine: %v", err)
		}
		if found := look(); len(found) != 1 || !strings.Contains(found[0], "ca_keys of the credential") {
			t.Errorf("another key of the engine: found %v", found)
		}
		i.from, x.scope.Issued[issuedName] = from, from
		if _, err := x.root.Logical().DeleteWithContext(t.Context(), from.RolePath()); err != nil {
			t.Fatal(err)
		}
		if _, err := i.signs(t, uptime); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "vault read "+from.RolePath()) {
			t.Errorf("no role: %v", err)
		}
		if found := look(); len(found) != 1 || !strings.Contains(found[0], "is missing") {
			t.Errorf("no role: found %v", found)
		}
		if n := x.setup(t); n != 1 {
			t.Errorf("%d things were made for a role that was missing", n)
		}
		good("the setup")
	})
}

// What a grant may ask of an engine of SSH, and nothing else.
func TestSSHGrantCannot(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		from := x.sshEngine()
		i := x.issuing(t, from)
		o, err := i.v.open(t.Context(), authoritytest.Use(i.grant, i.sealed, issuedName))
		if err != nil {
			t.Fatal(err)
		}
		order := func(change map[string]any) map[string]any {
			body := map[string]any{
				"public_key": sshtest.Line(sshtest.NewKey(t).PublicKey()), "cert_type": "user", "valid_principals": "deploy", "ttl": "60s",
				"key_id": "bivouac tenant=" + i.grant.Tenant.String() + " session=s action=a", "critical_options": map[string]any{"force-command": "id"},
			}
			for k, v := range change {
				if body[k] = v; v == nil {
					delete(body, k)
				}
			}
			return body
		}
		put := http.MethodPut
		x.allRefused(t, "the grant", o.token, map[string]attempt{
			"signs for root":         {put, from.Path(), order(map[string]any{"valid_principals": "root"})},
			"signs for two":          {put, from.Path(), order(map[string]any{"valid_principals": "deploy,root"})},
			"signs for an hour":      {put, from.Path(), order(map[string]any{"ttl": "1h"})},
			"signs for as long":      {put, from.Path(), order(map[string]any{"ttl": nil})},
			"signs a host":           {put, from.Path(), order(map[string]any{"cert_type": "host"})},
			"asks for a terminal":    {put, from.Path(), order(map[string]any{"extensions": map[string]any{"permit-pty": ""}})},
			"names another's action": {put, from.Path(), order(map[string]any{"key_id": "bivouac tenant=ten_other session=s action=a"})},
			"names nothing":          {put, from.Path(), order(map[string]any{"key_id": nil})},
			"says no command":        {put, from.Path(), order(map[string]any{"critical_options": nil})},
			"has a key made":         {put, from.Mount + "/issue/agents", order(map[string]any{"public_key": nil})},
			"changes the key":        {put, from.Mount + "/config/ca", map[string]any{"generate_signing_key": true}},
			"reads the role":         {http.MethodGet, from.RolePath(), nil},
		})
		if _, err := i.signs(t, uptime); err != nil {
			t.Error(err)
		}
	})
}
