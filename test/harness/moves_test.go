package harness_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac/test/harness"
)

// moving is a model whose coding turn runs a number of commands, and whose personal
// turns list a folder of the same machine.
func moving(commands, seconds int) string {
	var b strings.Builder
	for n := range commands {
		fmt.Fprintf(&b, `
rule "step %d" {
  when {
    user_contains = "go"
    results       = %d
  }
  call "shell" {
    arguments = { command = "sleep %ds" }
  }
}
`, n, n, seconds)
	}
	fmt.Fprintf(&b, `
rule "all" {
  when {
    user_contains = "go"
    results       = %d
  }
  text = "All of them."
}
rule "look" {
  when {
    user_contains = "list"
    results       = 0
  }
  call "files_list" {
    arguments = { path = "notes" }
  }
}
rule "looked" {
  when {
    user_contains = "list"
    results       = 1
  }
  text = "There is ${last_result}"
}
`, commands)
	return b.String()
}

// UDP is dropped and let through again, over and over, under a running attempt and
// with device actions at every side of each change. The link follows, each time by
// a new epoch; the attempt, its records, the mailbox and the actions do not notice:
// nothing is lost, and nothing is done twice. INV-14.
func TestLinkMovesUnderARunningAttempt(t *testing.T) {
	rounds, commands, seconds := 200, 20, 90
	if testing.Short() {
		rounds, commands, seconds = 5, 5, 9
	}
	harness.Test(t, harness.Options{Script: moving(commands, seconds)}, func(t *testing.T, w *harness.World) {
		alice, a := w.Person("alice"), w.Edge("a")
		alice.Apply(strings.NewReplacer(`place_within = "5m"`, `place_within = "5m"
    max_model_calls = 400
    max_tool_calls = 400
    max_tokens = 10000000
    max_cost_usd = 100
    max_wall = "2h"`, `  sandbox_tools`, `  sandbox { exec_timeout = "1h" }
  sandbox_tools`).Replace(coder))
		alice.Apply(assistant)
		alice.Grant("assistant")
		code, personal := alice.Open("coder"), ""
		coding := alice.Submit(code, "m1", "go")
		started(t, w, 1)
		epoch, listed := a.Status().Epoch, 0
		list := func() {
			t.Helper()
			if listed%10 == 0 { // a conversation that grows costs more and more
				personal = alice.Open("assistant")
			}
			listed++
			a.Write(fmt.Sprintf("file%d", listed), "")
			turn := alice.Submit(personal, fmt.Sprint("list", listed), "list it")
			got := alice.Completed(turn)
			if n := len(got.GetAttempts()); n != 1 || !strings.Contains(got.GetAnswer(), fmt.Sprintf("file%d", listed)) { // the newest one
				t.Fatalf("listing %d took %d attempts and says %q", listed, n, got.GetAnswer())
			}
		}
		for round := range rounds {
			w.BlockUDP(true)
			if round%2 == 0 {
				list() // while the link finds out
			}
			w.Until("the link is on TCP", time.Minute, func() bool { s := a.Status(); return s.Connected && s.Transport == "http/2" })
			if round%3 == 0 {
				list()
			}
			w.BlockUDP(false)
			a.Probe()
			s := a.Status()
			if !s.Connected || s.Transport != "http/3" {
				t.Fatalf("round %d: after the probe the link runs over %q: %s", round, s.Transport, s.QUICProblem)
			}
			if s.Epoch <= epoch {
				t.Fatalf("round %d: epoch %d after %d", round, s.Epoch, epoch)
			}
			epoch = s.Epoch
		}
		done := alice.Completed(coding)
		if len(done.GetAttempts()) != 1 || done.GetAnswer() != "All of them." {
			t.Errorf("the coding turn ended as %v", done)
		}
		if n := len(w.Log.Find("a", "command started")); n != commands {
			t.Errorf("%d commands were started, want %d", n, commands)
		}
		var shells []string
		for range commands {
			shells = append(shells, "shell")
		}
		inOrder(t, alice, code, shells...)
		if n := len(w.Log.Find("a", "the link moved back to HTTP/3")); n != rounds {
			t.Errorf("the link moved %d times in %d rounds", n, rounds)
		}
		if moves := w.Log.Find(harness.Server, "attempt moved"); len(moves) != 0 {
			t.Errorf("attempts were moved: %v", moves)
		}
		if lost := a.Status().Attempts; len(lost) != 0 {
			w.Until("nothing is left", time.Minute, func() bool { return len(a.Status().Attempts) == 0 })
		}
		for kind, n := range a.Status().Streams {
			if n.Open > 1 { // Attach
				t.Errorf("%d streams of kind %s are open", n.Open, kind)
			}
		}
	})
}
