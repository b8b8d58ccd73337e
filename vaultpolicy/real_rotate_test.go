//go:build linux

package vaultpolicy

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// dead reports an accessor that the server does not know.
func (x *site) dead(t *testing.T, accessor string) bool {
	t.Helper()
	_, err := x.root.Auth().Token().LookupAccessorWithContext(t.Context(), accessor)
	return err != nil
}

func (x *site) entryOf(t *testing.T, g authority.Grant) map[string]any {
	t.Helper()
	e, err := x.root.KVv2(x.cfg.names().Grants).Get(t.Context(), g.Principal.String()+"/"+g.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	return e.Data
}

// A rotation makes another token on the same person, and ends the old one, while
// another broker that watches the same grant takes it over and ends nothing. What
// somebody writes over it by hand still ends the grant. INV-13.
func TestRotationInTheServer(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		b, other := x.start(t, quick), x.start(t, quick)
		defer b.stop()
		defer other.stop()
		g, old := x.grant(t, b.Vault)
		until(t, other.Vault, g.ID, "")
		accessor := x.accessor(t, g)
		before, err := x.root.Auth().Token().LookupAccessorWithContext(t.Context(), accessor)
		if err != nil {
			t.Fatal(err)
		}
		next, err := b.RotateGrant(t.Context(), g.ID, "cln_rotation")
		if err != nil {
			t.Fatal(err)
		}
		if e := x.entryOf(t, g); e["accessor"] != accessor || e["next_accessor"] == nil || x.dead(t, accessor) {
			t.Errorf("before it is settled: %v", e)
		}
		for _, part := range [][]byte{old, next} {
			if _, err := other.Mint(t.Context(), authoritytest.Use(g, part, "weather")); err != nil {
				t.Errorf("at the other broker, before it is settled: %v", err)
			}
		}
		if err := b.SettleRotation(t.Context(), g.ID, "cln_rotation"); err != nil {
			t.Fatal(err)
		}
		now, err := x.root.Auth().Token().LookupAccessorWithContext(t.Context(), x.accessor(t, g))
		if err != nil || now.Data["entity_id"] != before.Data["entity_id"] || now.Data["orphan"] != true || !x.dead(t, accessor) {
			t.Errorf("the token in force: %v %v", now, err)
		}
		if e := x.entryOf(t, g); e["old_accessor"] != nil || e["next_accessor"] != nil || e["next_sealed"] != nil || e["rotation"] != "cln_rotation" || e["state"] != stateAlive {
			t.Errorf("the entry: %v", e)
		}
		for _, v := range []*Vault{b.Vault, other.Vault} {
			v.wake()
			v.list.Ring()
			if _, err := v.Mint(t.Context(), authoritytest.Use(g, next, "weather")); err != nil {
				t.Errorf("the new part: %v", err)
			}
			if _, err := v.Mint(t.Context(), authoritytest.Use(g, old, "weather")); protocol.DetailOf(err) != protocol.DetailGrantRotated {
				t.Errorf("the old part: %v", err)
			}
			until(t, v, g.ID, "")
		}
		time.Sleep(3 * duration(x.cfg.PollText)) // both have looked and read since
		for _, v := range []*Vault{b.Vault, other.Vault} {
			if e, ok := v.table.get(g.ID); !ok || !e.grant.RevokedAt.IsZero() || e.accessor != x.accessor(t, g) {
				t.Errorf("after a while: %+v", e)
			}
		}
		victim := x.accessor(t, g)
		if _, err := x.root.KVv2(x.cfg.names().Grants).Patch(t.Context(), g.Principal.String()+"/"+g.ID.String(), map[string]any{"accessor": accessor, "rotation": "cln_forged"}); err != nil {
			t.Fatal(err)
		}
		b.list.Ring()
		until(t, b.Vault, g.ID, protocol.CodePermissionDenied)
		b.finished(t)
		if !x.dead(t, victim) {
			t.Error("the token of a grant whose entry was forged lives on")
		}
	})
}

// A rotation that is cut off where the old token is to be ended goes on from there. One
// that is cut off before leaves the old in force; its new token ends with the grant.
func TestRotationCutOff(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		n := x.cfg.names()
		b := x.start(t, quick)
		defer func() { b.stop() }()
		g, old := x.grant(t, b.Vault)
		until(t, b.Vault, g.ID, "")
		accessor := x.accessor(t, g)
		rotate := func(name authority.Rotation) []byte {
			t.Helper()
			sealed, err := b.RotateGrant(t.Context(), g.ID, name)
			if err != nil {
				t.Fatal(err)
			}
			return sealed
		}
		next := rotate("cln_rotation")
		without := strings.Replace(n.Broker(), `path "auth/token/revoke-accessor"`, `path "none"`, 1)
		x.putPolicy(t, n.BrokerPolicy(), without)
		if err := b.SettleRotation(t.Context(), g.ID, "cln_rotation"); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "revoke-accessor") {
			t.Errorf("without the right to revoke: %v", err)
		}
		if e := x.entryOf(t, g); e["old_accessor"] != accessor || x.dead(t, accessor) {
			t.Errorf("what is left to do is not noted: %v", e)
		}
		if _, err := b.Mint(t.Context(), authoritytest.Use(g, next, "weather")); err != nil {
			t.Errorf("the new part: %v", err)
		}
		if _, err := b.Mint(t.Context(), authoritytest.Use(g, old, "weather")); protocol.DetailOf(err) != protocol.DetailGrantRotated {
			t.Errorf("the old part: %v", err)
		}
		x.putPolicy(t, n.BrokerPolicy(), n.Broker())
		b.stop()
		b = x.start(t, quick) // a broker that knows nothing of it
		until(t, b.Vault, g.ID, "")
		if err := b.SettleRotation(t.Context(), g.ID, "cln_rotation"); err != nil {
			t.Fatal(err)
		}
		if e := x.entryOf(t, g); e["old_accessor"] != nil || !x.dead(t, accessor) {
			t.Errorf("gone on with: %v", e)
		}
		last := rotate("cln_another")
		token := x.entryOf(t, g)["next_accessor"].(string)
		if err := x.root.Auth().Token().RevokeAccessorWithContext(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		if err := b.SettleRotation(t.Context(), g.ID, "cln_another"); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("a new token that ended: %v", err)
		}
		if _, err := b.Mint(t.Context(), authoritytest.Use(g, next, "weather")); err != nil {
			t.Errorf("the part in force: %v", err)
		}
		if again := rotate("cln_another"); string(again) == string(last) {
			t.Error("the part whose token ended was given again")
		}
		token = x.entryOf(t, g)["next_accessor"].(string)
		if _, err := b.RevokeGrant(t.Context(), g.ID); err != nil {
			t.Fatal(err)
		}
		if e := x.entryOf(t, g); !x.dead(t, token) || e["next_accessor"] != nil || e["sealed"] != nil || e["state"] != stateRevoked {
			t.Errorf("a grant that ended in the middle: %v", e)
		}
	})
}
