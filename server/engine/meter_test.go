package engine_test

import (
	"testing"
	"time"

	"bivouac/edge/protocol"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// tally is a Meter that remembers, and acts between two activations.
type tally struct {
	activated, lost, unknown int
	refused                  map[string]int
	minted                   map[protocol.Code]int
	decided                  map[string]time.Duration
	whenActivated            func()
}

func (m *tally) Activated(time.Duration) {
	m.activated++
	if do := m.whenActivated; do != nil {
		m.whenActivated = nil
		do()
	}
}
func (m *tally) ActivationLost()                        { m.lost++ }
func (m *tally) ToolRefused(why string)                 { m.refused[why]++ }
func (m *tally) Minted(code protocol.Code)              { m.minted[code]++ }
func (m *tally) Unknown()                               { m.unknown++ }
func (m *tally) Decided(state string, in time.Duration) { m.decided[state] += in }

func newTally() *tally {
	return &tally{refused: map[string]int{}, minted: map[protocol.Code]int{}, decided: map[string]time.Duration{}}
}

// What happens is told once, after it is durable; a lost race is told as that.
func TestMeter(t *testing.T) {
	m := newTally()
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(
			et.Calls(et.Call{ID: "a", Alias: "no_such_tool", Arguments: `{}`}, et.Call{ID: "b", Alias: "files_read", Arguments: `{"where":"x"}`}),
			et.Text("done")))
		first, second := w.Submit(w.Session("assistant"), "one"), w.Submit(w.Session("assistant"), "two")
		m.whenActivated = func() { // a person is faster, in the middle of the pass
			if w.Turn(first.ID).State == session.Queued {
				first, second = second, first
			}
			if _, err := w.Engine.CancelTurn(ctx(), w.Me(), second.ID); err != nil {
				t.Error(err)
			}
		}
		w.Settle()
		wantState(t, w, first.ID, session.Completed, "")
		wantState(t, w, second.ID, session.Cancelled, "cancelled")
		if m.activated != 1 || m.lost != 1 {
			t.Errorf("%d activated, %d lost", m.activated, m.lost)
		}
		if m.refused["name"] != 1 || m.refused["schema"] != 1 {
			t.Errorf("refused tools: %v", m.refused)
		}
		if m.minted[""] != 2 || len(m.minted) != 1 {
			t.Errorf("capabilities: %v", m.minted)
		}
	}, et.WithMeter(m))
}

// An approval that nobody answers is told when it ends, with how long it waited.
func TestMeterOfApprovals(t *testing.T) {
	m := newTally()
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Until("the question", func() bool { return w.Turn(turn.ID).State == session.WaitingApproval })
		asked := w.Approvals(turn.ID)[0]
		w.Sleep(asked.ExpiresAt.Sub(asked.CreatedAt) + time.Minute)
		if got := m.decided["EXPIRED"]; got < asked.ExpiresAt.Sub(asked.CreatedAt) || len(m.decided) != 1 {
			t.Errorf("%v", m.decided)
		}
	}, et.WithMeter(m))
}

// A capability that cannot be signed is told with its code, and one that can be.
func TestMeterOfDenials(t *testing.T) {
	m := newTally()
	inWorld(t, func(w *et.World, r *et.Runner) {
		begun(t, w, r)
		certify := w.RestartUncertified()
		clear(m.minted)
		r.Connect()
		r.Renew()
		if m.minted[protocol.CodeUnavailable] == 0 || m.minted[""] != 0 {
			t.Errorf("without a key: %v", m.minted)
		}
		certify()
		r.Renew()
		if m.minted[""] == 0 {
			t.Errorf("with one: %v", m.minted)
		}
	}, et.WithMeter(m))
}
