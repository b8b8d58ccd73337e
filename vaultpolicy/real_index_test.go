//go:build linux

package vaultpolicy

import (
	"maps"
	"testing"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/protocol"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// An entry of the index that somebody writes over with another's accessor ends its
// own grant and token; the other token lives on. So it is while a broker runs, and
// where it was changed before one started. INV-13.
func TestForeignAccessorInTheServer(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		tokens, kv := x.root.Auth().Token(), x.root.KVv2(x.cfg.names().Grants)
		victim, err := tokens.CreateWithContext(t.Context(), &api.TokenCreateRequest{Policies: []string{"default"}, TTL: "1h"})
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			away   bool
			change map[string]any
		}{
			"while it runs":                    {},
			"while it is away":                 {away: true},
			"while it is away, with its state": {away: true, change: map[string]any{"state": "off"}},
		} {
			b := x.start(t, quick)
			g, sealed := x.grant(t, b.Vault)
			until(t, b.Vault, g.ID, "")
			token := tokenIn(t, b.Vault, g, sealed)
			if c.away {
				b.stop()
			}
			changed := map[string]any{"accessor": victim.Auth.Accessor}
			maps.Copy(changed, c.change)
			if _, err := kv.Patch(t.Context(), g.Principal.String()+"/"+g.ID.String(), changed); err != nil {
				t.Fatal(err)
			}
			if c.away {
				b = x.start(t, quick)
			}
			b.list.Ring()
			until(t, b.Vault, g.ID, protocol.CodePermissionDenied)
			b.finished(t)
			if _, err := tokens.LookupWithContext(t.Context(), token); err == nil {
				t.Errorf("%s: the grant's own token lives on", name)
			}
			if _, err := tokens.LookupAccessorWithContext(t.Context(), victim.Auth.Accessor); err != nil {
				t.Errorf("%s: the other token: %v", name, err)
			}
			if e, err := kv.Get(t.Context(), g.Principal.String()+"/"+g.ID.String()); err != nil || e.Data["state"] != stateRevoked {
				t.Errorf("%s: the index says %v %v", name, e, err)
			}
			b.stop()
		}
	})
}
