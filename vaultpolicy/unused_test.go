package vaultpolicy

import (
	"testing"
	"testing/synctest"
	"time"

	"bivouac/server/broker/authority"
)

// The end of a grant that nobody uses is told of within half a minute and some polls,
// without any line of an audit, as the guide says; and the end of one in use within a
// poll. INV-13.
func TestEndOfUnusedGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var unused []authority.Grant
		for range 200 {
			g, _ := w.grant(t)
			unused = append(unused, g)
		}
		used, _ := w.grant(t)
		if err := w.use(t.Context(), 2*inUse, used)[0]; err != nil {
			t.Fatal(err)
		}
		revoke := func(some ...authority.Grant) {
			w.fake.with(func() {
				for _, g := range some {
					delete(w.fake.tokens, w.fake.tokenOf(g))
				}
			})
		}
		revoke(unused[0], unused[100], used)
		_ = w.use(t.Context(), defaultPoll+time.Second, used)
		found := map[string]bool{}
		for _, e := range w.told() {
			found[e.Grant.String()] = true
		}
		if !found[used.ID.String()] {
			t.Errorf("the end of a grant in use was not told of: %v", found)
		}
		time.Sleep(sweep + 3*defaultPoll)
		for _, e := range w.told() {
			found[e.Grant.String()] = true
		}
		if len(found) != 3 || !found[unused[0].ID.String()] || !found[unused[100].ID.String()] {
			t.Errorf("told of %v", found)
		}
	})
}
