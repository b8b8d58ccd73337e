package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/execution"
	"bivouac/server/session"
	"bivouac/server/store"
)

// life is a turn with everything that works for it, and what drives it.
type life struct {
	agent string
	// before sets the world up; drive does what people and machines do.
	before func(w *et.World, r *et.Runner)
	drive  func(t *testing.T, w *et.World, r *et.Runner, turn protocol.TurnID)
}

var lives = map[string]life{
	"an answer is lost": {agent: "assistant", before: func(w *et.World, _ *et.Runner) {
		w.Broker.LoseAnswers("http:send", 1)
		w.Broker.Say(et.Script(et.Calls(sent), et.Text("done")))
	}, drive: func(t *testing.T, w *et.World, _ *et.Runner, turn protocol.TurnID) {
		approvePending(t, w, w.Turn(turn))
	}},
	"a file is written": {agent: "assistant", before: func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
	}, drive: func(t *testing.T, w *et.World, _ *et.Runner, turn protocol.TurnID) {
		approvePending(t, w, w.Turn(turn))
	}},
	"a machine asks": {agent: "coder", before: func(*et.World, *et.Runner) {}, drive: codes},
	"a machine falls silent": {agent: "coder", before: func(_ *et.World, r *et.Runner) { r.Renews = false }, drive: func(t *testing.T, w *et.World, r *et.Runner, _ protocol.TurnID) {
		if h := r.Whole(); h != nil && len(h.Journal) == 0 {
			h.Begin()
		}
	}},
}

// codes is a worker that asks for a write, and finishes when it is decided.
func codes(t *testing.T, w *et.World, r *et.Runner, turn protocol.TurnID) {
	approvePending(t, w, w.Turn(turn))
	h := r.Whole()
	switch {
	case h == nil:
	case len(h.Journal) == 0 && h.Spec().Resume != nil:
		h.Begin()
		h.Event(assistant("done"))
		h.Finish("done", "")
	case len(h.Journal) == 0:
		h.Begin()
		h.Event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_Message{Message: et.Calls(write).Done.Message}})
		h.AskParked(write)
	case h.Journal[len(h.Journal)-1].GetResult() == nil && slices.ContainsFunc(r.Answers, func(a *runnerv1.ToolAnswer) bool { return a.Park && a.AttemptId == h.ID.String() }):
		h.Park(asking(h, write), "")
	}
}

// open are the states of a turn and of all that works for it, without those that
// have no exits.
func open(t *testing.T, w *et.World, id protocol.TurnID) (marks []string) {
	t.Helper()
	turn := w.Turn(id)
	if !turn.State.Terminal() {
		marks = append(marks, "turn "+string(turn.State))
	}
	subjects := []string{turn.ID.String()}
	for _, a := range w.Actions(id) {
		subjects = append(subjects, a.ID.String())
		if !a.State.Terminal() {
			marks = append(marks, "action "+string(a.State))
		}
	}
	for _, a := range w.Approvals(id) {
		if !a.State.Terminal() {
			marks = append(marks, "approval "+string(a.State))
		}
	}
	err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) error {
		for i, subject := range subjects {
			kind := execution.SubjectAction
			if i == 0 {
				kind = execution.SubjectTurn
			}
			all, err := tx.AttemptsOfSubject(kind, subject)
			if err != nil {
				return err
			}
			for _, a := range all {
				if !a.State.Terminal() {
					marks = append(marks, "attempt "+string(a.State))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return marks
}

// play runs a life; when a mark is seen for the first time the server falls and
// starts anew. It returns the marks in the order in which they were seen.
func (l life) play(t *testing.T, fallAt string) (seen []string) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		l.before(w, r)
		turn := w.Submit(w.Session(l.agent), "live").ID
		for began := time.Now(); ; {
			w.Once(func() bool {
				for _, mark := range open(t, w, turn) {
					if slices.Contains(seen, mark) {
						continue
					}
					if seen = append(seen, mark); mark == fallAt {
						return true
					}
				}
				return false
			})
			if len(seen) > 0 && seen[len(seen)-1] == fallAt {
				fallAt = ""
				w.Restart()
				r.Connect()
			}
			l.drive(t, w, r, turn)
			left := open(t, w, turn)
			if len(left) == 0 && w.Turn(turn).State.Terminal() {
				return
			}
			if time.Since(began) > 10*time.Minute {
				t.Fatalf("ten minutes later %v is open", left)
			}
			time.Sleep(500 * time.Millisecond)
		}
	})
	return seen
}

// On every start all that is not terminal is taken up, whatever its state: the
// server falls in every state that a turn, action, approval or attempt can be in,
// and everything comes to an end that the store has. INV-2, INV-18.
func TestStartTakesEverythingUp(t *testing.T) {
	var all []string
	for name, l := range lives {
		for _, mark := range l.play(t, "") {
			if slices.Contains(all, mark) {
				continue
			}
			all = append(all, mark)
			t.Run(name+"/"+mark, func(t *testing.T) { l.play(t, mark) })
		}
	}
	var want []string
	for _, s := range session.TurnStates {
		want = append(want, "turn "+string(s))
	}
	for _, s := range session.ActionStates {
		want = append(want, "action "+string(s))
	}
	for _, s := range session.ApprovalStates {
		want = append(want, "approval "+string(s))
	}
	for _, s := range execution.AttemptStates {
		want = append(want, "attempt "+string(s))
	}
	terminal := func(mark string) bool {
		var kind, state string
		fmt.Sscan(mark, &kind, &state)
		switch kind {
		case "turn":
			return session.TurnState(state).Terminal()
		case "action":
			return session.ActionState(state).Terminal()
		case "approval":
			return session.ApprovalState(state).Terminal()
		}
		return execution.AttemptState(state).Terminal()
	}
	for _, mark := range want {
		if !terminal(mark) && !slices.Contains(all, mark) {
			t.Errorf("no life passes through %s", mark)
		}
	}
}
