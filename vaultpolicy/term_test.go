package vaultpolicy

import (
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
)

// A token whose end the server has moved to now, as it does with all of a prefix before it
// ends one after the other, was revoked; one that is seen in the moment after its own end
// was not, nor is one that a restored server had with an earlier end.
func TestHowATokenEnded(t *testing.T) {
	const revoked, over = "its token was revoked in the server", "its token's time was over, because no broker renewed it"
	for name, c := range map[string]struct {
		early bool               // before the first look-up
		ends  func(x *fakeToken) // when its end comes; it is shown for a time after it
		how   string
	}{
		"revoked":                 {false, func(x *fakeToken) { x.ending = time.Now() }, revoked},
		"revoked, never seen":     {true, func(x *fakeToken) { x.ending = time.Now() }, revoked},
		"not renewed":             {false, func(x *fakeToken) { x.ending = x.made.Add(x.ttl) }, over},
		"not renewed, never seen": {true, func(x *fakeToken) { x.ending = x.made.Add(x.ttl) }, over},
		"restored with less time": {false, func(x *fakeToken) { x.made = time.Now().Add(-x.ttl); x.ending = time.Now() }, over},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.fake.with(func() { w.fake.denied = "auth/token/renew-accessor" })
				g, _ := w.grant(t)
				if c.early {
					w.stop()
				} else {
					w.use(t.Context(), 5*time.Second, g)
				}
				var end time.Time
				w.fake.with(func() {
					x := w.fake.tokens[w.fake.tokenOf(g)]
					c.ends(x)
					end = x.ending
				})
				time.Sleep(time.Until(end))
				if c.early {
					w.restart(t, w.client)
				}
				time.Sleep(sweep + defaultPoll) // it is looked up meanwhile
				if e, ok := w.table.get(g.ID); !ok || !e.grant.RevokedAt.IsZero() {
					t.Fatalf("it ended while the server still had it: %+v", e)
				}
				w.fake.with(func() { delete(w.fake.tokens, w.fake.tokenOf(g)) })
				codeIs(t, "alive", w.use(t.Context(), sweep, g)[0], protocol.CodePermissionDenied)
				if told := w.told(); len(told) != 1 || told[0].How != c.how {
					t.Errorf("told %+v", told)
				}
			})
		})
	}
}
