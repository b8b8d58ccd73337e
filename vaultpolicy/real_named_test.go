//go:build linux

package vaultpolicy

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// A broker learns from the lines about its own look-ups how a server's audit writes its
// grants down, from a file and from a socket. What the audit then names ends without a
// look at any other grant, and tokens of others, and what the broker itself writes of
// an end, have nobody looked up. INV-13.
func TestNamedByTheAudit(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		for _, name := range []string{"file", "socket"} {
			t.Run(name, func(t *testing.T) {
				x := newSite(t, vaulttest.Start(t, p))
				from := Audit{File: x.AuditFile()}
				if name == "socket" {
					from = Audit{Socket: filepath.Join(t.TempDir(), "audit.sock")}
				}
				v, said := x.tells(t, func(c *Config) { c.Audit, c.PollText, c.GraceText = &from, "10m", "1h" })
				if from.Socket != "" {
					x.sendTo(t, from.Socket)
				}
				x.endsByName(t, v, said)
			})
		}
	})
}

// sendTo has the server write its audit to a socket, as soon as somebody listens there.
func (x *site) sendTo(t testing.TB, socket string) {
	t.Helper()
	device := &api.EnableAuditOptions{Type: "socket", Options: map[string]string{"address": socket, "socket_type": "unix", "write_timeout": "500ms"}}
	eventually(t, "a device", func() bool {
		return x.root.Sys().EnableAuditWithOptionsWithContext(t.Context(), "bivouac", device) == nil
	})
}

// eventually waits until something holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s never came", what)
		}
	}
}

func (x *site) endsByName(t *testing.T, v *Vault, said *teller) {
	var all []authority.Grant
	for range 6 {
		g, _ := x.grant(t, v)
		all = append(all, g)
	}
	for _, g := range all {
		until(t, v, g.ID, "")
	}
	learned := func() bool { return v.sources[0].written.complete() }
	eventually(t, "what the audit writes of six grants", learned)
	witness := all[len(all)-1]
	tried := func() time.Duration { e, _ := v.table.get(witness.ID); return e.tried }
	before := tried()
	eventually(t, "the end of what the start has woken", func() bool {
		was := before
		time.Sleep(3 * quickAgain) // another quick round would come
		before = tried()
		return was == before
	})
	other, err := x.root.Auth().Token().CreateWithContext(t.Context(), &api.TokenCreateRequest{Policies: []string{"default"}, TTL: "1h"})
	if err == nil {
		err = x.root.Auth().Token().RevokeAccessorWithContext(t.Context(), other.Auth.Accessor)
	}
	if err != nil {
		t.Fatal(err)
	}
	kv := x.root.KVv2(v.names.Grants)
	for _, end := range []func(g authority.Grant) error{
		func(g authority.Grant) error {
			return x.root.Auth().Token().RevokeAccessorWithContext(t.Context(), x.accessor(t, g))
		},
		func(g authority.Grant) error {
			e, _ := v.table.get(g.ID)
			_, err := x.root.Logical().WriteWithContext(t.Context(), "identity/entity/id/"+e.entity, map[string]any{"disabled": true})
			return err
		},
		func(g authority.Grant) error {
			return kv.DeleteMetadata(t.Context(), g.Principal.String()+"/"+g.ID.String())
		},
	} {
		g := all[0]
		all = all[1:]
		if err := end(g); err != nil {
			t.Fatal(err)
		}
		until(t, v, g.ID, protocol.CodePermissionDenied)
		eventually(t, "the end in the server", func() bool { return said.of(g.ID) != "" && len(v.table.unfinished()) == 0 })
	}
	if now := tried(); now != before {
		t.Errorf("another grant was looked up, %s after it was before", now-before)
	}
	// A line that names nothing is about everything.
	if err := x.root.Sys().RevokePrefixWithContext(t.Context(), "auth/token/create/"+v.names.GrantRole()+"/"); err != nil {
		t.Fatal(err)
	}
	until(t, v, witness.ID, protocol.CodePermissionDenied)
}
