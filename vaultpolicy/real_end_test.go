//go:build linux

package vaultpolicy

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// teller gathers what Run tells.
type teller struct {
	mu   sync.Mutex
	told map[protocol.GrantID]string
}

func (x *site) tells(t testing.TB, change func(*Config)) (*Vault, *teller) {
	t.Helper()
	v, said := x.vault(t, change), &teller{told: map[protocol.GrantID]string{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	over := make(chan error)
	go func() {
		over <- v.Run(ctx, func(e authority.Ended) {
			said.mu.Lock()
			defer said.mu.Unlock()
			said.told[e.Grant] += e.How
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return v, said
}

func (s *teller) of(id protocol.GrantID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[id]
}

// until asks about a grant, as an open flow does, until its answer has a code.
func until(t testing.TB, v *Vault, id protocol.GrantID, want protocol.Code) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := v.Alive(t.Context(), id)
		if protocol.CodeOf(err) == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("Alive says %v, want %q", err, want)
		}
	}
}

// Every way in which an admin ends a grant, with the server's own commands: the next
// mint is refused, it is told with its reason, and nobody else's grant ends. INV-13.
func TestEndedByAdmin(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		audited := func(c *Config) { c.Audit = &Audit{File: x.AuditFile()} }
		v, said := x.tells(t, audited)
		n := v.names
		kv := x.root.KVv2(n.Grants)
		path := func(g authority.Grant) string { return g.Principal.String() + "/" + g.ID.String() }
		logical := x.root.Logical()
		witness, witnessSealed := x.grant(t, v)
		for name, c := range map[string]struct {
			how string
			end func(g authority.Grant, o opened) error
		}{
			"accessor": {"revoked in the server", func(g authority.Grant, _ opened) error {
				return x.root.Auth().Token().RevokeAccessorWithContext(t.Context(), x.accessor(t, g))
			}},
			"tree": {"revoked in the server", func(_ authority.Grant, o opened) error {
				return x.root.Auth().Token().RevokeTreeWithContext(t.Context(), o.token.Reveal())
			}},
			"orphan mode": {"revoked in the server", func(_ authority.Grant, o opened) error {
				return x.root.Auth().Token().RevokeOrphanWithContext(t.Context(), o.token.Reveal())
			}},
			"entity": {"disabled", func(g authority.Grant, _ opened) error {
				e, _ := v.table.get(g.ID)
				_, err := logical.WriteWithContext(t.Context(), "identity/entity/id/"+e.entity, map[string]any{"disabled": true})
				return err
			}},
			"entity deleted": {"deleted", func(g authority.Grant, _ opened) error {
				e, _ := v.table.get(g.ID)
				_, err := logical.DeleteWithContext(t.Context(), "identity/entity/id/"+e.entity)
				return err
			}},
			"index deleted":      {"index was deleted", func(g authority.Grant, _ opened) error { return kv.DeleteMetadata(t.Context(), path(g)) }},
			"index soft-deleted": {"index was deleted", func(g authority.Grant, _ opened) error { return kv.Delete(t.Context(), path(g)) }},
			"index state": {"index says so", func(g authority.Grant, _ opened) error {
				_, err := kv.Patch(t.Context(), path(g), map[string]any{"state": "revoked"})
				return err
			}},
		} {
			g, sealed := x.grant(t, v)
			until(t, v, g.ID, "")
			o, err := v.open(t.Context(), authoritytest.Use(g, sealed, "weather"))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.end(g, o); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !strings.HasPrefix(name, "index") {
				_, err = v.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
				codeIs(t, name+": the very next mint", err, protocol.CodePermissionDenied)
			}
			until(t, v, g.ID, protocol.CodePermissionDenied)
			_, err = v.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
			codeIs(t, name+": mint", err, protocol.CodePermissionDenied)
			for end := time.Now().Add(time.Minute); said.of(g.ID) == "" || len(v.table.unfinished()) > 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%s: not told or not finished: %q", name, said.of(g.ID))
				}
			}
			if how := said.of(g.ID); !strings.Contains(how, c.how) {
				t.Errorf("%s: told %q", name, how)
			}
			if _, err := x.root.Auth().Token().LookupWithContext(t.Context(), o.token.Reveal()); err == nil {
				t.Errorf("%s: its token lives on", name)
			}
			if e, err := kv.Get(t.Context(), path(g)); err != nil || e.Data["state"] != stateRevoked {
				t.Errorf("%s: the index says %v %v", name, e, err)
			}
		}
		if how := said.of(witness.ID); how != "" {
			t.Errorf("another's grant ended: %s", how)
		}
		if _, err := v.Mint(t.Context(), authoritytest.Use(witness, witnessSealed, "weather")); err != nil {
			t.Error("another's grant", err)
		}
		// Last, because it ends every grant at once.
		if err := x.root.Sys().RevokePrefixWithContext(t.Context(), "auth/token/create/"+n.GrantRole()+"/"); err != nil {
			t.Fatal(err)
		}
		until(t, v, witness.ID, protocol.CodePermissionDenied)
		_, err := v.Mint(t.Context(), authoritytest.Use(witness, witnessSealed, "weather"))
		codeIs(t, "prefix: mint", err, protocol.CodePermissionDenied)
		x.audit(t, v)
	})
}

// audit looks that what a server writes down holds no token and no value.
func (x *site) audit(t *testing.T, _ *Vault) {
	t.Helper()
	if log := x.Log(); strings.Contains(log, authoritytest.Value) {
		t.Error("the server's log holds a credential")
	}
}

// The server's socket device wakes the broker, long before the next poll; and a
// broker that goes away does not stop the server.
func TestAuditSocket(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		socket := filepath.Join(t.TempDir(), "audit.sock")
		v, said := x.tells(t, func(c *Config) {
			c.Audit, c.PollText, c.GraceText = &Audit{Socket: socket}, "1m", "5m"
		})
		g, sealed := x.grant(t, v)
		until(t, v, g.ID, "")
		if err := x.root.Sys().EnableAuditWithOptionsWithContext(t.Context(), "bivouac", &api.EnableAuditOptions{
			Type: "socket", Options: map[string]string{"address": socket, "socket_type": "unix", "write_timeout": "500ms"},
		}); err != nil {
			t.Fatal(err)
		}
		until(t, v, g.ID, "")
		x.revoke(t, g)
		until(t, v, g.ID, protocol.CodePermissionDenied)
		codeIs(t, "mint", mints(t, v, g, sealed), protocol.CodePermissionDenied)
		if how := said.of(g.ID); !strings.Contains(how, "revoked in the server") {
			t.Errorf("told %q", how)
		}
	})
}
