//go:build linux

package vaultpolicy

import (
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// A grant that one broker renewed, and another one ends before it has read of that, ends
// with the token that is in force: the entry is asked for it, and not the memory of who
// ends it. What somebody has written there of another's token is left alone, and
// what is sealed is ended in its place. INV-13.
func TestEndOfWhatAnotherBrokerRenewed(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		b, other := x.start(t, nil), x.start(t, nil)
		type grant struct {
			authority.Grant
			before, now string
		}
		var grants []grant
		for range 3 { // the last one lives on
			g, _ := x.grant(t, b.Vault)
			until(t, other.Vault, g.ID, "")
			grants = append(grants, grant{Grant: g, before: x.accessor(t, g)})
		}
		other.stop() // it looks at nothing any more, and ends what it is told to
		var sealed [][]byte
		for i, g := range grants {
			part, err := b.RotateGrant(t.Context(), g.ID, "cln_rotation")
			if err == nil {
				err = b.SettleRotation(t.Context(), g.ID, "cln_rotation")
			}
			if err != nil {
				t.Fatal(err)
			}
			grants[i].now, sealed = x.accessor(t, g.Grant), append(sealed, part)
			if e, _ := other.table.get(g.ID); e.accessor != g.before {
				t.Fatalf("the other one knows of it: %+v", e)
			}
		}
		b.stop() // and nobody is left who knows
		renewed, written, alive := grants[0], grants[1], grants[2]
		if _, err := x.root.KVv2(x.cfg.names().Grants).Patch(t.Context(), written.Principal.String()+"/"+written.ID.String(), map[string]any{"accessor": alive.now}); err != nil {
			t.Fatal(err)
		}
		for _, g := range []grant{renewed, written} {
			if _, err := other.RevokeGrant(t.Context(), g.ID); err != nil {
				t.Fatal(err)
			}
			if !x.dead(t, g.before) || !x.dead(t, g.now) {
				t.Error("it is revoked, and a token of it lives")
			}
			if e := x.entryOf(t, g.Grant); e["state"] != stateRevoked || e["sealed"] != nil || e["accessor"] == alive.now {
				t.Errorf("the entry: %v", e)
			}
		}
		if e := x.entryOf(t, renewed.Grant); e["accessor"] != renewed.now || e["rotation"] != "cln_rotation" {
			t.Errorf("the token that was in force is not listed: %v", e)
		}
		if x.dead(t, alive.now) {
			t.Error("the token of another grant was ended")
		}
		third := x.start(t, quick)
		defer third.stop()
		until(t, third.Vault, alive.ID, "")
		until(t, third.Vault, renewed.ID, protocol.CodePermissionDenied)
		codeIs(t, "a grant that lives", mints(t, third.Vault, alive.Grant, sealed[2]), "")
	})
}
