//go:build linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
)

// INV-6, INV-7: a coding turn asks a person in the middle of its work. Its attempt
// ends, and the machine holds nothing while it waits; the server is killed with -9
// meanwhile. After `bivouac approve` the effect happens, once, and a new attempt
// goes on with transcript and files: each command ran once.
func TestCodingTurnAsksAPerson(t *testing.T) {
	bin, err := stack.Build("faults")
	if err != nil {
		t.Fatal(err)
	}
	asking := strings.Replace(killCoder, `approval    = "never"`, `approval    = "always"`, 1)
	if asking == killCoder {
		t.Fatal("the coder has no tool that could ask")
	}
	w := newKillWorld(t, killConfig{bin: bin, tag: "asking", coder: asking, undecided: true})
	w.needsSandbox()
	turn := w.submit("coding", killCoding)
	approval := w.parked(turn)
	if n := w.out.effects("asking")["asking-post"]; n != 0 {
		t.Fatalf("it was posted %d times, and nobody approved it", n)
	}
	if err := w.Server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.Server.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := w.CLI(t.Context(), w.Home, "approve", approval); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ended := w.settled(turn, time.Now().Add(patience))
	effects := w.out.effects("asking")
	lines, _ := w.lines(ended)
	var attempts []string
	for _, a := range ended.GetAttempts() {
		attempts = append(attempts, a.GetState()+"{"+a.GetReason()+"}")
	}
	fmt.Printf("the turn is %s{%s}, attempts %v, effects %v, lines %v\n",
		ended.GetState(), ended.GetReason(), attempts, effects, lines)
	if ended.GetState() != "COMPLETED" {
		t.Fatalf("the turn is %s{%s}: %s\n%s\n%s", ended.GetState(), ended.GetReason(), ended.GetMessage(), w.explain(turn), w.tails())
	}
	if len(attempts) != 2 || attempts[0] != "INTERRUPTED{approval_required}" || !strings.HasPrefix(attempts[1], "SUCCEEDED") {
		t.Errorf("attempts %v", attempts)
	}
	if effects["asking-post"] != 1 || lines["asking-line1"] != 1 || lines["asking-line2"] != 1 {
		t.Errorf("effects %v, lines %v", effects, lines)
	}
}

// parked waits until the turn asks, and its machine holds nothing.
func (w *killWorld) parked(turn string) (approval string) {
	w.t.Helper()
	var said error
	for end := time.Now().Add(patience); time.Now().Before(end); pause(w.t.Context(), 25*time.Millisecond) {
		asked, err := w.API.Approvals.ListApprovals(w.t.Context(), &apiv1.ListApprovalsRequest{})
		if err != nil || len(asked.GetApprovals()) == 0 {
			said = err
			continue
		}
		status, err := w.edge.Status(w.t.Context())
		if said = err; err == nil && len(status.Attempts) == 0 {
			return asked.GetApprovals()[0].GetId()
		}
	}
	w.t.Fatalf("the turn does not wait without a machine: %v\n%s\n%s", said, w.explain(turn), w.tails())
	return ""
}
