// Package authoritytest is the suite of the broker's Authority port: the keyring
// passes it, and whatever else will hold grants and credentials.
package authoritytest

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/authority"
)

// Fixture is one implementation with its own state.
type Fixture struct {
	broker.Authority
	// RootKey checks the statement about the recipient.
	RootKey ed25519.PublicKey
	// Reopen closes and opens again on the same state, as a restart does.
	Reopen func(t *testing.T) broker.Authority
	// Open does what an admin must before a tenant's credentials can be granted and
	// bound to routes; nil: nothing.
	Open func(t *testing.T, tenant protocol.TenantID, credentials ...string)
	// Revoke ends a grant where it is held, without the broker; nil: nobody can.
	Revoke func(t *testing.T, g authority.Grant)

	watch *watched
}

// Run runs the suite. open makes an empty fixture.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for name, test := range map[string]func(*testing.T, Fixture){
		"GrantsAreSealed": grantsAreSealed, "RevokedGrantsMintNothing": revoked, "MintOnlyWhatWasGranted": mintOnly,
		"GrantIsIdempotent": idempotent, "CredentialsAreSealed": credentials, "TenantsAreApart": tenants, "EverythingIsDurable": durable,
		"EndsAreTold": endsAreTold, "RevokedOutside": revokedOutside,
		"RotatedGrants": rotated, "WhatIsNotRotated": notRotated,
		"CredentialsAreReplaced": replaced,
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t)
			f.watch = watch(t, f.Authority)
			test(t, f)
		})
	}
}

// reopen restarts the authority, and its Run with it.
func (f *Fixture) reopen(t *testing.T) {
	t.Helper()
	f.watch.stop()
	f.Authority = f.Reopen(t)
	f.watch = watch(t, f.Authority)
}

// Value of credentials in the suite.
const Value = "tok-authoritytest-0123456789"

func id[K protocol.Kind]() protocol.ID[K] { return protocol.NewID[K](time.Now(), rand.Reader) }

// NewGrant makes a grant of a fresh tenant and principal.
func NewGrant(credentials ...string) authority.Grant {
	return authority.Grant{
		ID: id[protocol.GrantKind](), Tenant: id[protocol.TenantKind](), Principal: id[protocol.PrincipalKind](),
		Agent: "assistant", Credentials: credentials,
	}
}

// Use is what a request under g would ask.
func Use(g authority.Grant, sealed []byte, credential string) authority.Use {
	return authority.Use{Grant: g.ID, Sealed: sealed, Tenant: g.Tenant, Principal: g.Principal, Agent: g.Agent, Credential: credential}
}

// Seal encrypts a credential as the command line does.
func Seal(t testing.TB, a broker.Authority, name, value string) []byte {
	t.Helper()
	recipient, _ := a.Recipient()
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(w).Encode(map[string]string{"name": name, "value": value}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func put(t *testing.T, f Fixture, tenant protocol.TenantID, name string) {
	t.Helper()
	if f.Open != nil {
		f.Open(t, tenant, name)
	}
	if err := f.PutCredential(t.Context(), tenant, name, Seal(t, f, name, Value)); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, f Fixture, g authority.Grant) []byte {
	t.Helper()
	if f.Open != nil {
		f.Open(t, g.Tenant, g.Credentials...)
	}
	sealed, err := f.CreateGrant(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func refused(t *testing.T, what string, err error, want protocol.Code) {
	t.Helper()
	if protocol.CodeOf(err) != want {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
	if err != nil && strings.Contains(err.Error(), Value) {
		t.Errorf("%s: the error holds the value", what)
	}
}

func minted(t *testing.T, a broker.Authority, u authority.Use) {
	t.Helper()
	v, err := a.Mint(t.Context(), u)
	if err != nil {
		t.Fatalf("the rightful use was refused: %v", err)
	}
	if !v.Equal(Value) || fmt.Sprintf("%v %+v %#v", v, v, v) != "REDACTED REDACTED REDACTED" {
		t.Error("the value is wrong or prints itself")
	}
}

func grantsAreSealed(t *testing.T, f Fixture) {
	g := NewGrant("weather")
	put(t, f, g.Tenant, "weather")
	sealed := create(t, f, g)
	for _, part := range []string{g.ID.String(), g.Principal.String(), "weather"} {
		if bytes.Contains(sealed, []byte(part)) {
			t.Errorf("the ciphertext shows %q", part)
		}
	}
	minted(t, f, Use(g, sealed, "weather"))
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if _, err := f.Mint(t.Context(), Use(g, bad, "weather")); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Fatalf("a changed byte %d: %v", i, err)
		}
	}
	_, err := f.Mint(t.Context(), Use(g, nil, "weather"))
	refused(t, "no ciphertext", err, protocol.CodePermissionDenied)
}

// revoked: INV-13, the next mint is refused, and a restart forgets nothing.
func revoked(t *testing.T, f Fixture) {
	g := NewGrant("weather")
	put(t, f, g.Tenant, "weather")
	sealed := create(t, f, g)
	minted(t, f, Use(g, sealed, "weather"))
	if err := settled(t, f, g.ID); err != nil {
		t.Fatal(err)
	}
	first, err := f.RevokeGrant(t.Context(), g.ID)
	if err != nil || first.RevokedAt.IsZero() {
		t.Fatalf("%+v %v", first, err)
	}
	again, err := f.RevokeGrant(t.Context(), g.ID)
	if err != nil || !again.RevokedAt.Equal(first.RevokedAt) {
		t.Errorf("repeating it: %+v %v", again, err)
	}
	for range 2 {
		_, err = f.Mint(t.Context(), Use(g, sealed, "weather"))
		refused(t, "mint after revocation", err, protocol.CodePermissionDenied)
		refused(t, "alive after revocation", settled(t, f, g.ID), protocol.CodePermissionDenied)
		_, err = f.CreateGrant(t.Context(), g)
		refused(t, "the same grant again", err, protocol.CodeConflict)
		f.reopen(t)
	}
	refused(t, "alive after a restart", settled(t, f, g.ID), protocol.CodePermissionDenied)
	until(t, "an authority that has just begun knows all grants", func() bool { // one of them it may know before
		_, err = f.RevokeGrant(t.Context(), id[protocol.GrantKind]())
		return protocol.CodeOf(err) != protocol.CodeUnavailable
	})
	refused(t, "an unknown grant", err, protocol.CodeNotFound)
}

// mintOnly: every part of a use must be the grant's. INV-10.
func mintOnly(t *testing.T, f Fixture) {
	g, other := NewGrant("weather", "absent"), NewGrant("weather")
	put(t, f, g.Tenant, "weather")
	put(t, f, g.Tenant, "ungranted")
	sealed, foreign := create(t, f, g), create(t, f, other)
	good := Use(g, sealed, "weather")
	minted(t, f, good)
	for what, change := range map[string]func(*authority.Use){
		"another credential": func(u *authority.Use) { u.Credential = "ungranted" },
		"another agent":      func(u *authority.Use) { u.Agent = "coder" },
		"another principal":  func(u *authority.Use) { u.Principal = other.Principal },
		"another tenant":     func(u *authority.Use) { u.Tenant = other.Tenant },
		"another grant id":   func(u *authority.Use) { u.Grant = other.ID },
		"another ciphertext": func(u *authority.Use) { u.Sealed = foreign },
	} {
		u := good
		change(&u)
		_, err := f.Mint(t.Context(), u)
		refused(t, what, err, protocol.CodePermissionDenied)
	}
	_, err := f.Mint(t.Context(), Use(g, sealed, "absent"))
	refused(t, "a credential that was never stored", err, protocol.CodeFailedPrecondition)
}

func idempotent(t *testing.T, f Fixture) {
	g := NewGrant("weather")
	put(t, f, g.Tenant, "weather")
	create(t, f, g)
	minted(t, f, Use(g, create(t, f, g), "weather"))
	wider := g
	wider.Credentials = []string{"weather", "other"}
	_, err := f.CreateGrant(t.Context(), wider)
	refused(t, "another content under the id", err, protocol.CodeConflict)
	list, err := f.Grants(t.Context(), g.Tenant)
	if err != nil || len(list) != 1 || !list[0].SameAs(g) || list[0].CreatedAt.IsZero() {
		t.Errorf("%+v %v", list, err)
	}
	_, err = f.CreateGrant(t.Context(), authority.Grant{ID: g.ID})
	refused(t, "an empty grant", err, protocol.CodeInvalidArgument)
}

// credentials arrive sealed to the recipient that the root signed.
func credentials(t *testing.T, f Fixture) {
	recipient, statement := f.Recipient()
	jws, err := jose.ParseSignedCompact(statement, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := jws.Verify(f.RootKey)
	if err != nil || string(payload) != `{"recipient":"`+recipient+`"}` {
		t.Errorf("%s %v", payload, err)
	}
	tenant := id[protocol.TenantKind]()
	put(t, f, tenant, "weather")
	list, err := f.Credentials(t.Context(), tenant)
	if err != nil || len(list) != 1 || list[0].Name != "weather" || list[0].UpdatedAt.IsZero() {
		t.Errorf("%+v %v", list, err)
	}
	if v, err := f.RouteKey(t.Context(), tenant, "weather"); err != nil || !v.Equal(Value) {
		t.Error("the value did not arrive", err)
	}
	refused(t, "sealed under another name", f.PutCredential(t.Context(), tenant, "other", Seal(t, f, "weather", Value)), protocol.CodeInvalidArgument)
	refused(t, "not sealed", f.PutCredential(t.Context(), tenant, "other", []byte(`{"name":"other","value":"`+Value+`"}`)), protocol.CodeInvalidArgument)
	refused(t, "too short", f.PutCredential(t.Context(), tenant, "other", Seal(t, f, "other", "short")), protocol.CodeInvalidArgument)
	refused(t, "a bad name", f.PutCredential(t.Context(), tenant, "No/Name", Seal(t, f, "No/Name", Value)), protocol.CodeInvalidArgument)
	if err := f.DeleteCredential(t.Context(), tenant, "weather"); err != nil {
		t.Error(err)
	}
	_, err = f.RouteKey(t.Context(), tenant, "weather")
	refused(t, "after deletion", err, protocol.CodeFailedPrecondition)
	refused(t, "deleting it again", f.DeleteCredential(t.Context(), tenant, "weather"), protocol.CodeNotFound)
}

func tenants(t *testing.T, f Fixture) {
	mine, theirs := NewGrant("weather"), NewGrant("weather")
	put(t, f, mine.Tenant, "weather")
	create(t, f, mine)
	if list, err := f.Grants(t.Context(), theirs.Tenant); err != nil || len(list) != 0 {
		t.Errorf("grants cross tenants: %+v %v", list, err)
	}
	if list, err := f.Credentials(t.Context(), theirs.Tenant); err != nil || len(list) != 0 {
		t.Errorf("credentials cross tenants: %+v %v", list, err)
	}
	_, err := f.RouteKey(t.Context(), theirs.Tenant, "weather")
	refused(t, "a key of another tenant", err, protocol.CodeFailedPrecondition)
	refused(t, "deleting another tenant's", f.DeleteCredential(t.Context(), theirs.Tenant, "weather"), protocol.CodeNotFound)
	if _, err := f.RouteKey(t.Context(), mine.Tenant, "weather"); err != nil {
		t.Error(err)
	}
}

func durable(t *testing.T, f Fixture) {
	g := NewGrant("weather")
	put(t, f, g.Tenant, "weather")
	sealed := create(t, f, g)
	before, _ := f.Recipient()
	f.reopen(t)
	minted(t, f, Use(g, sealed, "weather"))
	if after, _ := f.Recipient(); after != before {
		t.Error("the recipient changed")
	}
	if err := settled(t, f, g.ID); err != nil {
		t.Errorf("alive after a restart: %v", err)
	}
}
