//go:build linux

package vaultpolicy

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// A person who has an entity by another login becomes the person of their grants in
// two ways, as the operator's guide says: by an alias before the first grant, or by
// merging, which ends the grants there were. From then on disabling that one entity
// ends their grants, and its policies count for them. INV-13.
func TestOneEntityForAPerson(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		v, said := x.tells(t, quick)
		write := func(path string, body map[string]any) map[string]any {
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
		entityOf := func(g authority.Grant) string {
			t.Helper()
			until(t, v, g.ID, "")
			e, _ := v.table.get(g.ID)
			return e.entity
		}
		for name, unite := range map[string]func(g authority.Grant, person string){
			"alias": func(g authority.Grant, person string) {
				mounts, err := x.root.Sys().ListAuthWithContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				write("identity/entity-alias", map[string]any{"name": "user-" + g.Principal.String(), "canonical_id": person, "mount_accessor": mounts["token/"].Accessor})
			},
			"merge": func(g authority.Grant, person string) {
				first := fresh(g)
				if _, err := v.CreateGrant(t.Context(), first); err != nil {
					t.Fatal(err)
				}
				write("identity/entity/merge", map[string]any{"from_entity_ids": []string{entityOf(first)}, "to_entity_id": person})
				until(t, v, first.ID, protocol.CodePermissionDenied)
				if how := said.of(first.ID); !strings.Contains(how, "entity of its person was deleted") {
					t.Errorf("merging ends the grant with %q", how)
				}
			},
		} {
			person, _ := write("identity/entity", map[string]any{"name": x.Prefix() + name, "policies": []string{"default"}})["id"].(string)
			g := authoritytest.NewGrant("weather")
			if err := x.apply(t, g); err != nil {
				t.Fatal(err)
			}
			unite(g, person)
			sealed, err := v.CreateGrant(t.Context(), g)
			if err != nil {
				t.Fatal(err)
			}
			if got := entityOf(g); got != person {
				t.Fatalf("%s: the grant hangs on %s, not on %s", name, got, person)
			}
			o, err := v.open(t.Context(), authoritytest.Use(g, sealed, "weather"))
			if err != nil {
				t.Fatal(err)
			}
			// Only the default policy of the entity gives this.
			if _, err := x.client.Read(t.Context(), o.token, "auth/token/lookup-self"); err != nil {
				t.Errorf("%s: the policies of the person do not count: %v", name, err)
			}
			write("identity/entity/id/"+person, map[string]any{"disabled": true})
			until(t, v, g.ID, protocol.CodePermissionDenied)
			codeIs(t, name+": mint", mints(t, v, g, sealed), protocol.CodePermissionDenied)
			if how := said.of(g.ID); !strings.Contains(how, "disabled") {
				t.Errorf("%s: told %q", name, how)
			}
		}
	})
}
