package engine_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// shelf holds bytes by digest, with when they were put.
type shelf map[string]time.Time

func (s shelf) Older(before time.Time, each func(string) bool) error {
	for _, digest := range slices.Sorted(maps.Keys(s)) {
		if s[digest].Before(before) && !each(digest) {
			return nil
		}
	}
	return nil
}

func (s shelf) Remove(digest string) error { delete(s, digest); return nil }

// What nobody may read is removed, after the grace of an upload; what somebody
// may read stays; an upload of which no turn came is forgotten after a week.
func TestSweep(t *testing.T) {
	bytes := shelf{}
	inWorld(t, func(w *et.World, _ *et.Runner) {
		s := w.Session("assistant")
		put := func(digest string, of protocol.SessionID) {
			t.Helper()
			bytes[digest] = time.Now()
			if err := w.Store.Update(ctx(), w.Me(), func(tx *store.Tx) error {
				_, err := tx.PutArtifact(policy.Artifact{Digest: digest, Tenant: w.Tenant.ID, Principal: w.Person.ID, Session: of, Kind: "workspace", CreatedAt: tx.Now})
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		put("used", s.ID)
		put("unused", "")
		bytes["nobody's"] = time.Now()
		has := func(want ...string) {
			t.Helper()
			if got := slices.Sorted(maps.Keys(bytes)); !slices.Equal(got, want) {
				t.Errorf("%v are kept, want %v", got, want)
			}
		}
		pass := func(d time.Duration) { time.Sleep(d); w.Sleep(3 * time.Second) }
		pass(50 * time.Minute)
		has("nobody's", "unused", "used")
		pass(2 * time.Hour)
		has("unused", "used")
		pass(8 * 24 * time.Hour)
		has("used")
		if _, err := w.Engine.EraseSession(ctx(), w.Me(), s.ID); err != nil {
			t.Fatal(err)
		}
		pass(3 * time.Hour)
		has()
	}, et.WithBytes(bytes))
}

// A conversation ends before its record grows without bound, and says what to do.
func TestSessionsAreBounded(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Text("one"), et.Text("two")))
		s := w.Session("assistant")
		first := w.Submit(s, "hello")
		w.Settle()
		wantState(t, w, first.ID, session.Completed, "")
		var err error
		for n := range 10 {
			if _, err = w.Engine.SubmitTurn(ctx(), w.Me(), engine.NewTurn{Session: s.ID, MessageID: strings.Repeat("m", n+2), Prompt: "more"}); err != nil {
				break
			}
			w.Settle()
		}
		if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "bivouac chat --new") {
			t.Errorf("beyond the bound: %v", err)
		}
		w.Broker.Say(et.Script(et.Text("anew")))
		if next := w.Submit(w.Session("assistant"), "hello"); next.ID == "" {
			t.Error("a new session takes no turn")
		}
	}, et.WithLimits(engine.Limits{MaxSessionEvents: 8}))
}
