//go:build linux

package vaultpolicy

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/secret"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// A credential that was deleted in the server does not move over that, and is not told as
// there, while the keyring's copy is the only one. It moves when no version is left, and
// is there when the deletion is taken back.
func TestMoveOverADeletedCredential(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		b := x.start(t, quick)
		defer b.stop()
		g, sealed := x.grant(t, b.Vault)
		until(t, b.Vault, g.ID, "")
		kv, path := x.root.KVv2(x.cfg.names().Credentials), g.Tenant.String()+"/weather"
		value, err := secret.New("the-copy-in-the-keyring")
		if err != nil {
			t.Fatal(err)
		}
		step := func(what string, want Step, code protocol.Code) {
			t.Helper()
			for _, dry := range []bool{true, false} {
				got, err := b.MoveCredential(t.Context(), g.Tenant, "weather", value, dry)
				codeIs(t, what, err, code)
				if got != want || err != nil && !strings.Contains(err.Error(), "vault kv undelete -mount="+x.cfg.names().Credentials+" -versions=1 "+path) {
					t.Errorf("%s, dry %t: %q %v", what, dry, got, err)
				}
			}
		}
		if err := kv.Delete(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		step("a deleted one", "", protocol.CodeFailedPrecondition)
		if err := kv.Undelete(t.Context(), path, []int{1}); err != nil {
			t.Fatal(err)
		}
		step("where that is taken back", StepThere, "")
		if err := kv.Destroy(t.Context(), path, []int{1}); err != nil {
			t.Fatal(err)
		}
		step("a destroyed one", "", protocol.CodeFailedPrecondition)
		if err := kv.DeleteMetadata(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		if got, err := b.MoveCredential(t.Context(), g.Tenant, "weather", value, false); got != StepMove || err != nil {
			t.Fatalf("with no version left: %q %v", got, err)
		}
		step("what moved", StepThere, "")
		if now, err := b.Mint(t.Context(), authoritytest.Use(g, sealed, "weather")); err != nil || now != value {
			t.Errorf("what moved is not used: %v", err)
		}
	})
}

// A credential that an admin deletes while its token is renewed stays deleted, and is
// replaced again when he takes that back. One that the store will delete by age is
// there until then.
func TestDeletedIsNotReplaced(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		b := x.start(t, quick)
		defer b.stop()
		g, sealed := x.grant(t, b.Vault)
		until(t, b.Vault, g.ID, "")
		kv, path := x.root.KVv2(x.cfg.names().Credentials), g.Tenant.String()+"/weather"
		next, err := secret.New("the-next-refresh-token")
		if err != nil {
			t.Fatal(err)
		}
		was, err := b.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
		if err != nil {
			t.Fatal(err)
		}
		replace := func() error { return b.ReplaceCredential(t.Context(), g.Tenant, "weather", was, next) }
		if err := kv.Delete(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		codeIs(t, "a deleted one", replace(), protocol.CodeNotFound)
		codeIs(t, "the use of it", mints(t, b.Vault, g, sealed), protocol.CodeFailedPrecondition)
		if err := kv.Undelete(t.Context(), path, []int{1}); err != nil {
			t.Fatal(err)
		}
		if err := kv.PutMetadata(t.Context(), path, api.KVMetadataPutInput{DeleteVersionAfter: time.Hour}); err != nil {
			t.Fatal(err)
		}
		codeIs(t, "where that is taken back", replace(), "")
		now, err := b.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
		if err != nil || now != next {
			t.Errorf("it is another one: %v", err)
		}
		was, next = next, was
		codeIs(t, "one that is deleted in an hour", replace(), "")
		if list, err := b.Credentials(t.Context(), g.Tenant); err != nil || len(list) != 1 {
			t.Errorf("one that is deleted in an hour is not listed: %v %v", list, err)
		}
		was, next = next, was
		if err := kv.Destroy(t.Context(), path, []int{3}); err != nil {
			t.Fatal(err)
		}
		codeIs(t, "a destroyed one", replace(), protocol.CodeNotFound)
	})
}
