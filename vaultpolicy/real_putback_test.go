//go:build linux

package vaultpolicy

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// tended is an adapter that a test stops and starts.
type tended struct {
	*Vault
	stop func()
}

func (x *site) start(t *testing.T, change func(*Config)) *tended {
	t.Helper()
	b := &tended{Vault: x.vault(t, change)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	over := make(chan error)
	go func() { over <- b.Run(ctx, func(authority.Ended) {}) }()
	b.stop = func() {
		t.Helper()
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
	return b
}

// finished waits until nothing that ended is left to be told to the server.
func (b *tended) finished(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); len(b.table.unfinished()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("ends are not finished in the server")
		}
	}
}

// tokenIn is the token of a grant, opened by an adapter.
func tokenIn(t *testing.T, v *Vault, g authority.Grant, sealed []byte) string {
	t.Helper()
	o, err := v.open(t.Context(), authoritytest.Use(g, sealed, "weather"))
	if err != nil {
		t.Fatal(err)
	}
	return o.token.Reveal()
}

// An entry that says revoked, with a date, and was written by hand while no broker ran
// is believed, and its token ended by the broker that comes; another's lives on.
// INV-13.
func TestEndWrittenByHand(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		tokens, kv := x.root.Auth().Token(), x.root.KVv2(x.cfg.names().Grants)
		b := x.start(t, quick)
		g, sealed := x.grant(t, b.Vault)
		other, otherSealed := x.grant(t, b.Vault)
		until(t, b.Vault, g.ID, "")
		token := tokenIn(t, b.Vault, g, sealed)
		b.stop()
		path := g.Principal.String() + "/" + g.ID.String()
		if _, err := kv.Patch(t.Context(), path, map[string]any{"state": "revoked", "revoked": stamp(now())}); err != nil {
			t.Fatal(err)
		}
		if _, err := tokens.LookupWithContext(t.Context(), token); err != nil {
			t.Fatalf("the token ended by itself, so the test shows nothing: %v", err)
		}
		b = x.start(t, quick)
		defer func() { b.stop() }()
		until(t, b.Vault, g.ID, protocol.CodePermissionDenied)
		b.finished(t)
		if _, err := tokens.LookupWithContext(t.Context(), token); err == nil {
			t.Error("the token lives on")
		}
		if e, err := kv.Get(t.Context(), path); err != nil || e.Data["state"] != stateRevoked || e.Data["sealed"] != nil {
			t.Errorf("the index says %v %v", e, err)
		}
		until(t, b.Vault, other.ID, "")
		codeIs(t, "another's mint", mints(t, b.Vault, other, otherSealed), "")
	})
}

// A server is put back to a snapshot from before revocations: the tokens live in it
// again, and are ended by a broker that ran all the while, and by one that starts since
// when it is told what was revoked, as its servers tell it at every start. INV-13.
func TestServerPutBackToSnapshot(t *testing.T) {
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		tokens := x.root.Auth().Token()
		b := x.start(t, quick)
		defer func() { b.stop() }()
		first, firstSealed := x.grant(t, b.Vault)
		second, secondSealed := x.grant(t, b.Vault)
		kept, keptSealed := x.grant(t, b.Vault)
		token := map[protocol.GrantID]string{first.ID: tokenIn(t, b.Vault, first, firstSealed), second.ID: tokenIn(t, b.Vault, second, secondSealed)}
		lives := func(g authority.Grant) bool {
			_, err := tokens.LookupWithContext(t.Context(), token[g.ID])
			return err == nil
		}
		restore := x.Snapshot(t)
		until(t, b.Vault, kept.ID, "")
		for _, g := range []authority.Grant{first, second} {
			if _, err := b.RevokeGrant(t.Context(), g.ID); err != nil || lives(g) {
				t.Fatalf("the revocation: %v, its token lives: %t", err, lives(g))
			}
		}
		restore()
		if !lives(first) || !lives(second) {
			t.Fatal("the tokens are not back, so the test shows nothing")
		}
		until(t, b.Vault, kept.ID, "")
		// What is asked for is ended at once, the other by the next reading of the index.
		if _, err := b.RevokeGrant(t.Context(), first.ID); err != nil || lives(first) {
			t.Errorf("revoked again: %v, its token lives: %t", err, lives(first))
		}
		b.list.Ring()
		for end := time.Now().Add(time.Minute); lives(second); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the token of the second lives on")
			}
		}
		b.stop()
		restore()
		b = x.start(t, quick)
		until(t, b.Vault, kept.ID, "")
		for _, g := range []authority.Grant{first, second} {
			if !lives(g) {
				t.Fatal("the tokens are not back, so the test shows nothing")
			}
			if _, err := b.RevokeGrant(t.Context(), g.ID); err != nil || lives(g) {
				t.Errorf("a new broker: %v, its token lives: %t", err, lives(g))
			}
			codeIs(t, "alive", b.Alive(t.Context(), g.ID), protocol.CodePermissionDenied)
		}
		codeIs(t, "another's mint", mints(t, b.Vault, kept, keptSealed), "")
	})
}

// Every finding has its row or its word in the guide, by its name.
func TestGuideNamesFindings(t *testing.T) {
	guide, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("findings.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`"(vault\.[a-z]+)"`).FindAllStringSubmatch(string(source), -1) {
		names[m[1]] = true
	}
	if len(names) < 7 || !names["vault.cluster"] {
		t.Fatalf("found %v", names)
	}
	for name := range names {
		if !strings.Contains(string(guide), "`"+name+"`") {
			t.Errorf("the guide does not name %s", name)
		}
	}
}

// clusterFound looks at a server as a running broker does, and finds another one.
func clusterFound(t *testing.T, v *Vault) *finding.Finding {
	t.Helper()
	r := finding.From("broker")
	v.Examine(t.Context(), r)
	for i, f := range r.All {
		if f.Check == "vault.cluster" {
			return &r.All[i]
		}
	}
	return nil
}
