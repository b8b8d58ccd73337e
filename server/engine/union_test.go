package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

var forecast = et.Call{ID: "f", Alias: "forecast", Arguments: `{"city":"Oslo"}`}

// give makes a grant to the assistant, a moment after the one before.
func give(t *testing.T, w *et.World, credentials ...string) policy.Grant {
	t.Helper()
	w.Sleep(time.Second)
	g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant", Credentials: credentials})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func revokeGrant(t *testing.T, w *et.World, id protocol.GrantID) engine.Revocation {
	t.Helper()
	rev, err := w.Engine.RevokeGrant(ctx(), w.Me(), id, "stolen")
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func sessionState(t *testing.T, w *et.World, id protocol.SessionID) (s session.Session) {
	t.Helper()
	err := w.Store.View(ctx(), w.Me(), func(tx *store.Tx) (err error) {
		s, err = tx.Session(id)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// told is the value that the newest event of a type has under a key.
func told(t *testing.T, w *et.World, id protocol.SessionID, of session.EventType, key string) (value string) {
	t.Helper()
	err := w.Store.View(ctx(), w.Me(), func(tx *store.Tx) error {
		events, err := tx.Events(id, 0, 0)
		for _, e := range events {
			if e.Type == of {
				value = e.Data[key]
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// INV-13: a revocation ends what stands on that grant, and nothing else: the session
// that ran under another one goes on, with its turn that waits and its next one, and
// so does one that never ran.
func TestRevocationEndsWhatStandsOnIt(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Calls(write), et.Text("done"), et.Text("next")))
		older := give(t, w)
		first := w.Session("assistant")
		onOlder := w.Submit(first, "under the older")
		w.Settle()
		newer := give(t, w)
		second, idle := w.Session("assistant"), w.Session("assistant")
		onNewer, queued := w.Submit(second, "under the newer"), w.Submit(second, "behind it")
		w.Settle()
		wantState(t, w, onOlder.ID, session.WaitingApproval, "")
		wantState(t, w, onNewer.ID, session.WaitingApproval, "")

		rev := revokeGrant(t, w, newer.ID)
		ended := wantState(t, w, onNewer.ID, session.Failed, "grant_revoked")
		wantState(t, w, queued.ID, session.Cancelled, "grant_revoked")
		if !strings.Contains(ended.Message, newer.ID.String()) {
			t.Errorf("the turn does not say by which grant: %s", ended.Message)
		}
		if got := sessionState(t, w, second.ID).State; got != session.Revoked {
			t.Errorf("the session under the revoked grant is %s", got)
		}
		if got := told(t, w, second.ID, session.SessionRevoked, "grant"); got != newer.ID.String() {
			t.Errorf("its record names the grant %q", got)
		}
		if !slices.Equal(rev.Ended.Sessions, []string{second.ID.String()}) || len(rev.Ended.Turns) != 2 {
			t.Errorf("said to have ended: %s", rev.Ended)
		}
		w.Sleep(time.Minute) // whatever would end later has ended
		for _, s := range []session.Session{first, idle} {
			if got := sessionState(t, w, s.ID).State; got != session.Open {
				t.Errorf("a session that does not stand on it is %s", got)
			}
		}
		wantState(t, w, onOlder.ID, session.WaitingApproval, "")
		approve(t, w, onOlder.ID, true)
		w.Settle()
		wantState(t, w, onOlder.ID, session.Completed, "")
		next := w.Submit(idle, "next")
		w.Settle()
		wantState(t, w, next.ID, session.Completed, "")
		if again := revokeGrant(t, w, newer.ID); again.Ended.String() != rev.Ended.String() {
			t.Errorf("a second revocation says %s", again.Ended)
		}
		x, err := w.Engine.Explain(ctx(), w.Me(), newer.ID.String())
		if err != nil || x.State != "REVOKED" || !strings.Contains(x.WaitingFor, second.ID.String()) {
			t.Errorf("explained as %+v, %v", x, err)
		}
		if x, err := w.Engine.Explain(ctx(), w.Me(), older.ID.String()); err != nil || x.State != "ACTIVE" {
			t.Errorf("the other is explained as %+v, %v", x, err)
		}
		// What was last there takes the rest.
		rev = revokeGrant(t, w, older.ID)
		if want := []string{idle.ID.String(), first.ID.String()}; !slices.Equal(sorted(rev.Ended.Sessions), sorted(want)) {
			t.Errorf("the older one ended %s", rev.Ended)
		}
	})
}

func sorted(ids []string) []string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return ids
}

// A conversation stands on the grant that it last ran under: the one before it may go.
func TestSessionThatMovedOn(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Text("one"), et.Text("two")))
		older := give(t, w)
		s := w.Session("assistant")
		w.Submit(s, "one")
		w.Settle()
		newer := give(t, w)
		w.Submit(s, "two")
		w.Settle()
		if rev := revokeGrant(t, w, older.ID); rev.Ended.String() != "nothing stood on it" {
			t.Errorf("ended %s", rev.Ended)
		}
		if got := sessionState(t, w, s.ID).State; got != session.Open {
			t.Errorf("the session is %s", got)
		}
		revokeGrant(t, w, newer.ID)
		if got := sessionState(t, w, s.ID).State; got != session.Revoked {
			t.Errorf("the session is %s", got)
		}
	})
}

// The agent works under all grants in force: a credential of the older one is used
// although a newer one does not give it, each under the grant that gives it.
func TestGrantsAreOne(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(forecast), et.Text("sunny")))
		older := give(t, w, "weather-token")
		newest := give(t, w, "other")
		_, tools := found(t, w, "assistant", "")
		if got := tools["http:forecast"]; got.State != engine.ToolOffered {
			t.Errorf("with both: %s, %s", got.State, got.Why)
		}
		s := w.Session("assistant")
		turn := w.Submit(s, "weather?")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		if a, b := told(t, w, s.ID, session.TurnActivated, "grant"), told(t, w, s.ID, session.ToolDispatched, "grant"); a != newest.ID.String() || b != older.ID.String() {
			t.Errorf("the turn ran under %s and its action under %s", a, b)
		}
		// Of two that give it, the newer.
		third := give(t, w, "weather-token")
		w.Broker.Say(et.Script(et.Calls(forecast), et.Text("sunny")))
		w.Submit(s, "again?")
		w.Settle()
		if got := told(t, w, s.ID, session.ToolDispatched, "grant"); got != third.ID.String() {
			t.Errorf("the action ran under %s", got)
		}
		revokeGrant(t, w, third.ID)
		revokeGrant(t, w, older.ID)
		_, tools = found(t, w, "assistant", "")
		if got := tools["http:forecast"]; got.State != engine.ToolRefused || got.By != "authority" {
			t.Errorf("with the other alone: %s by %s", got.State, got.By)
		}
	})
}

// INV-13, INV-10: an action whose grant is gone is refused by name, and its turn,
// which stands on another, goes on; a grant that came since is for the next turn.
func TestRevokedGrantRefusesItsActions(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		older := give(t, w, "weather-token")
		give(t, w, "other")
		w.Broker.Say(et.Script(et.Calls(write), et.Calls(forecast), et.Text("done")))
		s := w.Session("assistant")
		turn := w.Submit(s, "weather?")
		w.Settle()
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		revokeGrant(t, w, older.ID)
		since := give(t, w, "weather-token")
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		approve(t, w, turn.ID, true)
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
		got := lastResult(w)
		if got.GetCode() != string(protocol.CodePermissionDenied) || !strings.Contains(got.GetText(), older.ID.String()) {
			t.Errorf("the model was told %v", got)
		}
		if n := effects(w, "http:forecast"); n != 0 {
			t.Errorf("%d calls under a revoked grant", n)
		}
		w.Broker.Say(et.Script(et.Calls(forecast), et.Text("done"))) // the positive twin
		w.Submit(s, "now?")
		w.Settle()
		if n := effects(w, "http:forecast"); n != 1 || told(t, w, s.ID, session.ToolDispatched, "grant") != since.ID.String() {
			t.Errorf("under the new grant: %d calls", n)
		}
	})
}

func effects(w *et.World, ref string) (n int) {
	for _, e := range w.Broker.Effects() {
		if e.Tool == ref {
			n++
		}
	}
	return n
}

// INV-13: an action under way ends with its grant. The broker cuts it off; what only
// reads is refused, or asked again under the grant that gives the credential too.
func TestRevocationMidAction(t *testing.T) {
	for _, another := range []bool{false, true} {
		inWorld(t, func(w *et.World, _ *et.Runner) {
			var spare policy.Grant
			if another {
				spare = give(t, w, "weather-token")
			}
			mine := give(t, w, "weather-token")
			give(t, w, "other")
			tries := 0
			w.Broker.Serve("http:forecast", func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
				if tries++; tries == 1 { // it is cut off while it is under way
					err := w.Store.Update(ctx(), w.Me(), func(tx *store.Tx) error { _, err := tx.RevokeGrant(mine.ID, ""); return err })
					if err != nil {
						t.Error(err)
					}
					return nil, protocol.Errorf(protocol.CodeUnavailable, "cut off")
				}
				return &brokerv1.InvokeResponse{HttpStatus: 200, ContentType: "text/plain", Body: []byte("sunny")}, nil
			})
			w.Broker.Say(et.Script(et.Calls(forecast), et.Text("done")))
			s := w.Session("assistant")
			turn := w.Submit(s, "weather?")
			w.Sleep(time.Minute)
			wantState(t, w, turn.ID, session.Completed, "")
			got := lastResult(w)
			if another {
				if got.GetText() != "sunny" || tries != 2 {
					t.Errorf("under %s: %v after %d tries", spare.ID, got, tries)
				}
				return
			}
			if got.GetCode() != string(protocol.CodePermissionDenied) || !strings.Contains(got.GetText(), mine.ID.String()) || tries != 1 {
				t.Errorf("without another: %v after %d tries", got, tries)
			}
		})
	}
}
