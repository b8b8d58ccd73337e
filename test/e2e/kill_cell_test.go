//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac/edge/fault"
	"bivouac/test/e2e/stack"
)

// cell is one kill: a process of one of the two turns, at one step.
type cell struct {
	turn  string // personal or coding
	label fault.Label
	nth   int // time that the process gets there; zero means one
	what  string
	// way distinguishes two cells of one label.
	way string
	// keeper is another definition of the personal agent; empty: killKeeper.
	keeper string
	// ends lists how the first turn may end; unknown are the effects that it leaves
	// unknown, without the tag.
	ends    string
	unknown []string
	// meanwhile happens between the death and the next start, and replaces the
	// restart when it starts something itself.
	meanwhile func(w *killWorld) (started bool)
}

func (c cell) name() string {
	name := fmt.Sprintf("%s/%s@%d", c.turn, c.label, max(1, c.nth))
	if c.way != "" {
		name += "/" + c.way
	}
	return name
}

// program that gets to the label, and the process of the stack that is given it.
func (c cell) program() (killed, told string) {
	role, _, _ := strings.Cut(string(c.label), ".")
	switch role {
	case "server", "broker":
		return "bivouac-" + role, role
	case "worker":
		return "bivouac-worker", "edge"
	}
	return "bivouac-edge", "edge"
}

// restarts says that nothing in the product starts the process again: a service
// manager or a person does.
func (c cell) restarts(w *killWorld) *stack.Process {
	switch role, _, _ := strings.Cut(string(c.label), "."); role {
	case "server":
		return w.Server
	case "broker":
		return w.Broker
	case "edge":
		return w.edge.Daemon
	}
	return nil // the daemon starts supervisors, and a supervisor its worker
}

// patience is how long a turn may take after the kill; far more than it needs, for
// timing is never judged here.
const patience = 3 * time.Minute

// run plays the cell and returns what was seen.
func (c cell) run(t *testing.T, bin string, patience time.Duration) sighting {
	t.Helper()
	began := time.Now()
	killed, told := c.program()
	tag := strings.ToLower(strings.Map(letters, t.Name()[strings.LastIndex(t.Name(), "/")+1:]))
	w := newKillWorld(t, killConfig{bin: bin, tag: tag, keeper: c.keeper, fault: stack.Fault{Process: told, Label: fmt.Sprintf("%s@%d", c.label, max(1, c.nth))}})
	first, next := killPersonal, killMore
	if c.turn == "coding" {
		w.needsSandbox()
		first, next = killCoding, killLine
	}
	s := sighting{cell: c.name(), killed: killed}
	turn := w.submit(c.turn, first)
	queued := w.submit(c.turn, next)
	s.label, s.pid = w.reached(turn)
	if s.label != string(c.label) {
		t.Fatalf("%s: reached %q", s.cell, s.label)
	}
	w.kill(s.pid, killed)
	w.comeBack(c)
	end := time.Now().Add(patience)
	ended, behind := w.settled(turn, end), w.settled(queued, end)
	s.first, s.next = endOf(ended), endOf(behind)
	if ended.GetEndedAt() == nil || behind.GetEndedAt() == nil {
		t.Logf("%s%s", w.explain(turn), w.tails())
	}
	s.effects, s.unknown, s.claims = w.out.effects(tag), w.inbox(), w.claims.count()
	for _, turn := range []string{turn, queued} {
		got := ended
		if turn == queued {
			got = behind
		}
		for _, a := range got.GetActions() {
			if id := effectOf(a); id != "" && a.GetState() == "SUCCEEDED" {
				s.accepted = append(s.accepted, id)
			}
		}
		added, said := w.lines(got)
		maps.Copy(s.effects, added)
		s.accepted = append(s.accepted, said...)
	}
	if slices.Contains(s.unknown, tag+"-post") {
		s.repeated = w.askAgain(c.turn, tag, s.effects)
	}
	s.took = time.Since(began)
	return s
}

// letters keeps what an effect's id may hold.
func letters(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
		return r
	}
	return -1
}

// needsSandbox skips, loudly, where a coding turn cannot run at all.
func (w *killWorld) needsSandbox() {
	w.t.Helper()
	st, err := w.edge.Status(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if st.Boundary == "" {
		w.t.Skipf("SKIPPED LOUDLY: this machine has no usable sandbox: %s", st.SandboxProblem)
	}
}

// reached waits until the process stands at its label.
func (w *killWorld) reached(turn string) (label string, pid int) {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); pause(w.t.Context(), 5*time.Millisecond) {
		b, err := os.ReadFile(w.Path("fault"))
		if err != nil || !bytes.HasSuffix(b, []byte("\n")) {
			continue
		}
		if _, err := fmt.Sscanf(string(b), "%s %d", &label, &pid); err != nil {
			w.t.Fatalf("the fault file says %q: %v", b, err)
		}
		return label, pid
	}
	w.t.Fatalf("the label was not reached; the turn is %+v\n%s", endOf(w.settled(turn, time.Now().Add(time.Second))), w.tails())
	return "", 0
}

// tails are the last words of all processes.
func (w *killWorld) tails() string {
	said := []string{w.Server.Tail(), w.Broker.Tail()}
	for _, e := range w.Edges {
		said = append(said, e.Daemon.Tail())
	}
	return strings.Join(said, "\n")
}

// explain is the product's own word on a turn that has not ended.
func (w *killWorld) explain(turn string) string {
	out, err := w.CLI(w.t.Context(), w.Home, "explain", turn)
	if err != nil {
		return err.Error()
	}
	return out
}

// kill ends one process by its number, after a look at what it is, and waits until
// it is gone.
func (w *killWorld) kill(pid int, program string) {
	w.t.Helper()
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || strings.TrimSpace(string(comm)) != program {
		w.t.Fatalf("process %d is %q, not %s (%v)", pid, bytes.TrimSpace(comm), program, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); pause(w.t.Context(), 2*time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
	}
	w.t.Fatalf("process %d outlived kill -9", pid)
}

// comeBack starts again what nothing in the product starts.
func (w *killWorld) comeBack(c cell) {
	w.t.Helper()
	p := c.restarts(w)
	if p != nil {
		<-p.Gone()
	}
	if c.meanwhile != nil && c.meanwhile(w) || p == nil {
		return
	}
	if err := p.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// askAgain asks for the unknown call once more, and returns the effects after it.
// INV-5: until a person decides it is refused, in every turn.
func (w *killWorld) askAgain(turn, tag string, before map[string]int) map[string]int {
	w.t.Helper()
	w.session = "" // another session of the same person
	again := w.settled(w.submit("personal", killRepeat), time.Now().Add(patience))
	if e := endOf(again); e.State != "COMPLETED" || len(again.GetActions()) != 0 {
		w.t.Errorf("the turn that asks again is %+v, with %d actions", e, len(again.GetActions()))
	}
	if codes := w.resultCodes(again.GetId()); !slices.Equal(codes, []string{"outcome_unknown"}) {
		w.t.Errorf("the model was told %v", codes)
	}
	after := maps.Clone(before)
	maps.DeleteFunc(after, func(id string, _ int) bool { return strings.HasPrefix(id, tag) })
	maps.Copy(after, w.out.effects(tag))
	for id, n := range before { // lines are the patches', not the ledger's
		if strings.Contains(id, "-line") || turn == "coding" && strings.HasSuffix(id, "-next") {
			after[id] = n
		}
	}
	return after
}
