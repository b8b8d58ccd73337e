//go:build linux

package vaultpolicy

import (
	"sync"
	"testing"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// A server ends a prefix one token after the other, also after it has answered, and shows
// each of them for a moment with no time left. However that moment falls between the
// look-ups, every grant says that it was revoked, and none that its time was over.
func TestPrefixIsRevoked(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		v := x.run(t, quick)
		var all []authority.Grant
		for range 40 {
			g, _ := x.grant(t, v)
			all = append(all, g)
		}
		for _, g := range all {
			until(t, v, g.ID, "")
		}
		var looks sync.WaitGroup
		for i := range parallel {
			looks.Go(func() { // without a pause, until each of its grants has ended
				for lives := true; lives; {
					lives = false
					for j := i; j < len(all); j += parallel {
						if e, _ := v.table.get(all[j].ID); e.grant.RevokedAt.IsZero() && t.Context().Err() == nil {
							v.examine(t.Context(), e, newPersons(), nil)
							lives = true
						}
					}
				}
			})
		}
		err := x.root.Sys().RevokeWithOptionsWithContext(t.Context(), &api.RevokeOptions{LeaseID: "auth/token/create/" + v.names.GrantRole() + "/", Prefix: true})
		if err != nil {
			t.Fatal(err)
		}
		looks.Wait()
		for _, g := range all {
			until(t, v, g.ID, protocol.CodePermissionDenied)
			if e, _ := v.table.get(g.ID); e.how != "its token was revoked in the server" {
				t.Errorf("told %q", e.how)
			}
		}
	})
}
