package vaultpolicy

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
)

// snapshot of the fake; the returned function puts it back.
func (w *world) snapshot() (restore func()) {
	tokens, kv := map[string]*fakeToken{}, map[string][]map[string]any{}
	w.fake.with(func() {
		maps.Copy(tokens, w.fake.tokens)
		for key, versions := range w.fake.kv {
			kv[key] = slices.Clone(versions)
		}
	})
	return func() { w.fake.with(func() { w.fake.tokens, w.fake.kv = tokens, kv }) }
}

// A server that is put back to a state from before a revocation has the token again.
// A broker that knows of the end makes it once more, by itself and when it is asked
// to; one that began since does so when it is asked. Nobody is told twice. INV-13.
func TestServerPutBack(t *testing.T) {
	for name, c := range map[string]struct{ restart, ask bool }{
		"by itself":        {},
		"asked":            {ask: true},
		"a new one, asked": {restart: true, ask: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g, sealed := w.grant(t)
				other, otherSealed := w.grant(t)
				w.use(t.Context(), 10*time.Second, g, other)
				restore := w.snapshot()
				if _, err := w.RevokeGrant(t.Context(), g.ID); err != nil {
					t.Fatal(err)
				}
				if _, lives := w.lives(g); lives || w.entry(g)["sealed"] != nil {
					t.Fatal("the revocation does not end the token, or leaves it sealed in the index")
				}
				if c.restart {
					w.stop()
				}
				synctest.Wait() // nothing is under way to the server
				restore()
				if c.restart {
					w.restart(t, w.client)
				}
				if _, lives := w.lives(g); !lives {
					t.Fatal("the server was not put back, so the test shows nothing")
				}
				if c.ask {
					if _, err := w.RevokeGrant(t.Context(), g.ID); err != nil {
						t.Error(err)
					}
				} else {
					time.Sleep(sweep + 5*time.Second)
				}
				if _, lives := w.lives(g); lives || w.entry(g)["state"] != stateRevoked {
					t.Errorf("its token lives: %t; the index says %v", lives, w.entry(g))
				}
				_, err := w.Mint(t.Context(), authoritytest.Use(g, sealed, "weather"))
				codeIs(t, "mint", err, protocol.CodePermissionDenied)
				if told := w.told(); len(told) != 0 {
					t.Errorf("told of what this broker was asked for: %+v", told)
				}
				codeIs(t, "the other", w.use(t.Context(), 10*time.Second, other)[0], "")
				if _, err := w.Mint(t.Context(), authoritytest.Use(other, otherSealed, "weather")); err != nil {
					t.Error("the other", err)
				}
			})
		})
	}
}

// Asking again about a grant that ended asks the server, and says so when it is away:
// nobody knows then whether the token lives.
func TestRevokeAgainAsksTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g, _ := w.grant(t)
		for range 2 {
			if _, err := w.RevokeGrant(t.Context(), g.ID); err != nil {
				t.Fatal(err)
			}
		}
		w.fake.with(func() { w.fake.denied = "bivouac-grants/" })
		_, err := w.RevokeGrant(t.Context(), g.ID)
		codeIs(t, "without an answer", err, protocol.CodeFailedPrecondition)
		w.fake.with(func() { w.fake.denied = "" })
		if _, err := w.RevokeGrant(t.Context(), g.ID); err != nil {
			t.Error(err)
		}
	})
}

// A grant whose token has an end of its own is looked up when that has come, also
// where nobody uses it, and says why it ended.
func TestOverdueIsLookedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g, _ := w.grant(t)
		w.fake.with(func() { w.fake.tokens[w.fake.tokenOf(g)].fixed = true })
		w.use(t.Context(), time.Second, g)
		time.Sleep(inUse + sweep) // nobody asks any more
		w.fake.with(func() {
			x := w.fake.tokens[w.fake.tokenOf(g)]
			x.made = time.Now().Add(5*time.Second + sweep - x.ttl)
		})
		time.Sleep(sweep) // it is seen when it ends, once
		if told := w.told(); len(told) != 0 {
			t.Fatalf("it ended early: %+v", told)
		}
		time.Sleep(5*time.Second + 2*defaultPoll)
		told := w.told()
		if len(told) != 1 || told[0].How != "its token's time was over, which had an end of its own" {
			t.Errorf("told %+v", told)
		}
	})
}
