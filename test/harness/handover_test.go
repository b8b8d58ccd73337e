package harness_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/server/execution"
	"bivouac/test/harness"
)

// author is a model that writes a file in one turn and reads it in the next; in
// a third kind of turn it writes, and then a command takes long.
const author = `
rule "write" {
  when {
    user_contains = "write"
    results       = 0
  }
  call "write_file" {
    arguments = { path = "note.txt", content = "from the first turn\n" }
  }
}
rule "then take long" {
  when {
    user_contains = "take long"
    results       = 1
  }
  call "shell" {
    arguments = { command = "sleep 30s" }
  }
}
rule "and read what was written" {
  when {
    user_contains = "take long"
    results       = 2
  }
  call "read_file" {
    arguments = { path = "note.txt" }
  }
}
rule "written" {
  when {
    user_contains = "write"
    result_of     = "write_file"
  }
  text = "I wrote note.txt."
}
rule "read" {
  when {
    user_contains = "read"
    results       = 0
  }
  call "read_file" {
    arguments = { path = "note.txt" }
  }
}
rule "say" {
  when { result_of = "read_file" }
  text = "It says: ${last_result}"
}
`

// The session's next turn runs on other hardware, when the first machine is gone
// for good, and sees transcript and accepted patch.
func TestNextTurnRunsOnTheOtherMachine(t *testing.T) {
	harness.Test(t, harness.Options{Script: author}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		w.Edge("a")
		alice.Apply(coder)
		session := alice.Open("coder")
		first := alice.Completed(alice.Submit(session, "m1", "write a note"))
		w.KillEdge("a")
		w.Edge("b")
		second := alice.Completed(alice.Submit(session, "m2", "now read it"))
		if second.GetAnswer() != "It says: from the first turn\n" || second.GetPatchDigest() != "" {
			t.Errorf("the second turn ended as %v", second)
		}
		ran := map[string]string{}
		for _, one := range []*apiv1.Turn{first, second} {
			for _, a := range one.GetAttempts() {
				ran[one.GetId()] = a.GetRunnerName() + " " + a.GetState()
			}
		}
		if ran[first.GetId()] != "a SUCCEEDED" || ran[second.GetId()] != "b SUCCEEDED" {
			t.Errorf("the turns ran as %v", ran)
		}
		// What really reached the model: the whole conversation, in order.
		received := w.Provider.Received()
		body := string(received[len(received)-1].Body)
		at := 0
		for _, said := range []string{"write a note", "I wrote note.txt.", "now read it", "from the first turn"} {
			i := strings.Index(body[at:], said)
			if i < 0 {
				t.Fatalf("the model did not see %q after the first %d bytes of %s", said, at, body)
			}
			at += i
		}
	})
}

// An offer to a machine that just died goes to the other one when it was not
// claimed in its time.
func TestUnclaimedOfferGoesElsewhere(t *testing.T) {
	harness.Test(t, harness.Options{Script: author}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		w.Edge("a")
		w.Edge("b")
		alice.Apply(coder)
		session := alice.Open("coder")
		asked := time.Now()
		w.Partition("a") // the server has not noticed
		turn := alice.Completed(alice.Submit(session, "m1", "write a note"))
		if n := len(turn.GetAttempts()); n != 1 || turn.GetAttempts()[0].GetRunnerName() != "b" {
			t.Errorf("the turn ran as %v", turn.GetAttempts())
		}
		offers := w.Log.Find(harness.Server, "attempt offered")
		last := offers[len(offers)-1]
		if len(offers) == 2 { // a was asked first
			soon(t, w, "the offer went to b", last.At, asked.Add(offerTTL))
		}
		w.Exactly("b claimed", alice.EventAt(session, "attempt.claimed", ""), last.At.Add(2*harness.Latency))
	})
}

// offerTTL is the engine's default.
const offerTTL = 10 * time.Second

// A running turn moves to the other machine with what was accepted of it: the
// checkpoint's transcript and patch. What was done before is not done again.
func TestRunningTurnMovesWithItsCheckpoint(t *testing.T) {
	harness.Test(t, harness.Options{Script: author}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		w.Edge("a")
		alice.Apply(coder)
		session := alice.Open("coder")
		turn := alice.Submit(session, "m1", "write a note, then take long")
		started(t, w, 1)
		renewal := renewed(t, w)
		w.Edge("b")
		w.KillEdge("a")
		done := alice.Completed(turn)
		over := alice.EventAt(session, "attempt.ended", "INTERRUPTED")
		last := renewal.Add(harness.Latency)
		for _, r := range w.Log.Calls(harness.Server, renew, "peer", done.GetAttempts()[0].GetRunnerId()) {
			last = r.At
		}
		w.Exactly("the first attempt ended", over, last.Add(retention+execution.LeaseGuard))
		if done.GetAnswer() != "It says: from the first turn\n" || !strings.Contains(alice.Artifact(done.GetPatchDigest()), "+from the first turn") {
			t.Errorf("the turn ended as %v", done)
		}
		var writes, shells int
		for _, e := range alice.EventsOf(session) {
			if e.GetType() == "tool.dispatched" && strings.Contains(e.GetData(), "sandbox.write") {
				writes++
			}
			if e.GetType() == "tool.dispatched" && strings.Contains(e.GetData(), "sandbox.shell") {
				shells++
			}
		}
		if writes != 1 || shells != 2 {
			t.Errorf("the file was written %d times, the command was run %d times; want 1 and 2", writes, shells)
		}
		// The first machine comes back and tidies up.
		a := w.ReviveEdge("a")
		w.Until("a is tidy", time.Minute, func() bool { return len(a.Attempts()) == 0 }) // INV-18
		if got := alice.Turn(turn); got.GetAnswer() != done.GetAnswer() || len(got.GetAttempts()) != 2 {
			t.Errorf("after the first machine came back the turn is %v", got)
		}
	})
}

// A result that comes after the work was given to another is kept as evidence and
// changes nothing: not the turn, not the conversation, not the link. INV-3.
func TestLateResultIsEvidence(t *testing.T) {
	script := strings.ReplaceAll(author, "sleep 30s", "sleep 3s")
	harness.Test(t, harness.Options{Script: script}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		a := w.Edge("a")
		alice.Apply(coder)
		session := alice.Open("coder")
		turn := alice.Submit(session, "m1", "write a note, then take long")
		started(t, w, 1)
		w.Edge("b")
		renewed(t, w)
		// The broker is reached, so the first machine ends the turn for itself.
		w.Sever("a", harness.Server)
		w.Until("a has a result", ttl, func() bool { return len(w.Log.Find("a", "the attempt has its result")) == 1 })
		if got := w.Log.Find("a", "the attempt has its result")[0]; got.Attrs["status"] != "succeeded" {
			t.Fatalf("a ended as %v", got.Attrs)
		}
		done := alice.Completed(turn)
		if len(done.GetAttempts()) != 2 || done.GetAttempts()[0].GetState() != "INTERRUPTED" || done.GetAttempts()[1].GetState() != "SUCCEEDED" {
			t.Fatalf("the turn ended as %v", done)
		}
		w.Mend("a", harness.Server)
		w.Until("a is tidy", 2*time.Minute, func() bool { return len(a.Attempts()) == 0 })
		if connects := len(w.Log.Find("a", "connected")); connects != 2 {
			t.Errorf("a connected %d times, want once at first and once again", connects)
		}
		if got := alice.Turn(turn); got.GetAttempts()[0].GetState() != "INTERRUPTED" || !got.GetEndedAt().AsTime().Equal(done.GetEndedAt().AsTime()) {
			t.Errorf("the late result moved the turn: %v", got)
		}
		if !slices.ContainsFunc(alice.EventsOf(session), func(e *apiv1.Event) bool { return e.GetType() == "attempt.evidence" }) {
			t.Error("the late result is not kept")
		}
		alice.Completed(alice.Submit(session, "m2", "now read it"))
		answered(t, w)
	})
}

// answered proves that in the conversation that the provider got last every tool
// call has exactly one result, right behind it.
func answered(t *testing.T, w *harness.World) {
	t.Helper()
	received := w.Provider.Received()
	var body struct {
		Messages []struct {
			Role  string
			Calls []struct{ ID string } `json:"tool_calls"`
			ID    string                `json:"tool_call_id"`
		}
	}
	if err := json.Unmarshal(received[len(received)-1].Body, &body); err != nil {
		t.Fatal(err)
	}
	var open []string
	for i, m := range body.Messages {
		if m.Role == "tool" {
			if n := slices.Index(open, m.ID); n < 0 {
				t.Errorf("message %d answers no open call", i)
			} else {
				open = slices.Delete(open, n, n+1)
			}
			continue
		}
		if len(open) > 0 {
			t.Errorf("message %d comes before the calls %v are answered", i, open)
		}
		for _, c := range m.Calls {
			open = append(open, c.ID)
		}
	}
	if len(open) > 0 || len(body.Messages) < 8 {
		t.Errorf("%d messages, %v open", len(body.Messages), open)
	}
}
