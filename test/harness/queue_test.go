package harness_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/test/harness"
)

// slow is a model that thinks for ten seconds about everything.
const slow = `
rule "think" {
  delay = "10s"
  text  = "I thought about: ${last_user}"
}
`

// Turns of a session run one at a time and in the order in which they came, each
// activated in the instant in which the one before it ended; sessions do not wait
// for each other. INV-1.
func TestQueueOrderOverSeveralSessions(t *testing.T) {
	harness.Test(t, harness.Options{Script: slow}, func(t *testing.T, w *harness.World) {
		alice, bob := w.Person("alice"), w.PersonOf("acme", "bob")
		queues := map[string][]string{} // turns by session, in order
		owner := map[string]*harness.Person{}
		for _, p := range []*harness.Person{alice, alice, bob} {
			if p != alice || len(queues) == 0 {
				p.Apply(assistant)
			}
			owner[p.Open("assistant")] = p
		}
		for n := range 3 {
			for session, p := range owner {
				m := fmt.Sprintf("m%d", n)
				queues[session] = append(queues[session], p.Submit(session, m, "thought "+m))
				if n == 0 {
					p.Await(queues[session][0], "RUNNING_MODEL")
				}
			}
		}
		for session, turns := range queues {
			for n, id := range turns[1:] {
				if got := owner[session].Turn(id); got.GetPosition() != int32(n+1) || got.GetState() != "QUEUED" {
					t.Errorf("%s waits in place %d as %s, want %d", id, got.GetPosition(), got.GetState(), n+1)
				}
			}
		}
		for session, turns := range queues {
			inTurn(t, w, owner[session], session, turns)
		}
	})
}

// inTurn checks one session: order, no gap, no overlap.
func inTurn(t *testing.T, w *harness.World, p *harness.Person, session string, turns []string) {
	t.Helper()
	var ended time.Time
	for n, id := range turns {
		got := p.Completed(id)
		if want := fmt.Sprintf("I thought about: thought m%d", n); got.GetAnswer() != want {
			t.Errorf("turn %d answered %q, want %q", n, got.GetAnswer(), want)
		}
		if n > 0 {
			w.Exactly(fmt.Sprintf("turn %d of %s was activated", n, session), got.GetActivatedAt().AsTime(), ended)
		}
		ended = got.GetEndedAt().AsTime()
	}
	active := ""
	for _, e := range p.EventsOf(session) {
		switch e.GetType() {
		case "turn.activated":
			if active != "" {
				t.Errorf("%s became active beside %s", e.GetTurnId(), active)
			}
			active = e.GetTurnId()
		case "turn.ended":
			active = ""
		}
	}
}

// A message that comes twice is one turn, whatever its state; the same id with
// other words is refused. INV-15.
func TestDuplicateMessageIsTheSameTurn(t *testing.T) {
	harness.Test(t, harness.Options{Script: slow}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		alice.Apply(assistant)
		session := alice.Open("assistant")
		turn := alice.Submit(session, "m1", "once")
		again := func() *apiv1.SubmitTurnResponse {
			res, err := alice.Turns.SubmitTurn(t.Context(), &apiv1.SubmitTurnRequest{SessionId: session, MessageId: "m1", Prompt: "once"})
			if err != nil {
				t.Fatal(err)
			}
			if !res.GetDuplicate() || res.GetTurn().GetId() != turn {
				t.Errorf("the duplicate is %v", res)
			}
			return res
		}
		again()
		alice.Await(turn, "RUNNING_MODEL")
		again()
		w.RestartServer()
		again()
		alice.Completed(turn)
		if res := again(); res.GetTurn().GetState() != "COMPLETED" {
			t.Errorf("the duplicate of an ended turn is %v", res)
		}
		_, err := alice.Turns.SubmitTurn(t.Context(), &apiv1.SubmitTurnRequest{SessionId: session, MessageId: "m1", Prompt: "other words"})
		if protocol.CodeOf(err) != protocol.CodeConflict {
			t.Errorf("the same id with other words: %v", err)
		}
		if other := alice.Submit(session, "m2", "other words"); other == turn {
			t.Error("another message is the same turn")
		}
		var queued int
		for _, e := range alice.EventsOf(session) {
			if e.GetType() == "turn.queued" {
				queued++
			}
		}
		if queued != 2 {
			t.Errorf("%d turns were queued by two messages", queued)
		}
	})
}

// A full queue says so, and when to come back; a place that becomes free is given
// to the next who asks.
func TestFullQueueSaysWhenToComeBack(t *testing.T) {
	harness.Test(t, harness.Options{Script: slow}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		alice.Apply(assistant)
		session := alice.Open("assistant")
		first := alice.Submit(session, "m0", "zero")
		alice.Await(first, "RUNNING_MODEL")
		second := alice.Submit(session, "m1", "one")
		alice.Submit(session, "m2", "two")
		full := func() *protocol.Error {
			_, err := alice.Turns.SubmitTurn(t.Context(), &apiv1.SubmitTurnRequest{SessionId: session, MessageId: "m3", Prompt: "three"})
			var e *protocol.Error
			if !errors.As(err, &e) || e.Code != protocol.CodeQueueFull || e.RetryAfter <= 0 {
				t.Fatalf("two wait, which is the agent's limit, and a third got %v", err)
			}
			return e
		}
		full()
		if _, err := alice.Turns.CancelTurn(t.Context(), &apiv1.CancelTurnRequest{TurnId: second}); err != nil {
			t.Fatal(err)
		}
		third := alice.Submit(session, "m3", "three")
		alice.Completed(first)
		alice.Completed(third)
		if got := alice.Turn(second); got.GetState() != "CANCELLED" || got.GetActivatedAt() != nil {
			t.Errorf("the cancelled turn is %v", got)
		}
	})
}
