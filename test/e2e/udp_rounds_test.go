//go:build linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac/edge"
	"bivouac/test/e2e/stack"
)

// UDP is dropped by a real firewall and let through again, over and over, with
// turns under way on both sides of each change: one that begins over QUIC and ends
// over TCP, and one that begins over TCP and ends over QUIC. Every effect happens
// exactly once, every turn takes one attempt, and the same daemon follows the whole
// time, each move by a later epoch. INV-14.
func TestUDPDroppedAndBack(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 5
	}
	control, edgeNet := twoNetworks(t)
	bin, err := stack.Build()
	if err != nil {
		t.Fatal(err)
	}
	calm := func(agent string) string { return strings.Replace(agent, killLease, "", 1) }
	w := newKillWorld(t, killConfig{bin: bin, tag: "rounds", control: control.place(), edge: edgeNet.place(), coder: calm(killCoder), keeper: calm(killKeeper)})
	w.needsSandbox()
	st := w.linkIs(t, "http/3")
	for round := range rounds {
		first, second := "personal", "coding"
		if round%2 == 1 {
			first, second = second, first
		}
		over := w.began(first, fmt.Sprintf("r%da", round))
		lift := edgeNet.firewall(t, dropSilently)
		w.linkIs(t, "http/2")
		back := w.began(second, fmt.Sprintf("r%db", round))
		lift()
		now, err := w.edge.Probe(t.Context())
		if err != nil || now.Transport != "http/3" || !now.Connected || now.Epoch <= st.Epoch {
			t.Fatalf("round %d: after the probe the link is %q, epoch %d after %d, problem %q, %v\n%s",
				round, now.Transport, now.Epoch, st.Epoch, now.QUICProblem, err, w.edge.Daemon.Tail())
		}
		st = now
		w.doneOnce(t, over)
		w.doneOnce(t, back)
	}
	for kind, n := range w.linkIs(t, "http/3").Streams {
		if n.Open > 1 { // the mailbox
			t.Errorf("%d streams of kind %s are open", n.Open, kind)
		}
	}
	fmt.Printf("udp dropped and back: %d rounds, %d turns, epoch %d\n", rounds, 2*rounds, st.Epoch)
}

// begun is a turn under way.
type begun struct{ kind, tag, turn string }

func (w *killWorld) began(kind, tag string) begun {
	w.t.Helper()
	w.session, w.tag = "", tag
	prompt := killPersonal
	if kind == "coding" {
		prompt = killCoding
	}
	return begun{kind, tag, w.submit(kind, prompt)}
}

// doneOnce waits for a turn and counts what it did outside.
func (w *killWorld) doneOnce(t *testing.T, b begun) {
	t.Helper()
	w.tag = b.tag
	got := w.settled(b.turn, time.Now().Add(patience))
	if e := endOf(got); e.State != "COMPLETED" {
		t.Fatalf("%s: the %s turn is %+v: %s\n%s", b.tag, b.kind, e, got.GetMessage(), w.tails())
	}
	want := []string{"post", "put", "file"}
	if b.kind == "coding" {
		want = []string{"post"}
		if added, _ := w.lines(got); added[b.tag+"-line1"] != 1 || added[b.tag+"-line2"] != 1 || len(got.GetAttempts()) != 1 {
			t.Errorf("%s: the patch adds %v after %d attempts", b.tag, added, len(got.GetAttempts()))
		}
	}
	seen := w.out.effects(b.tag)
	for _, id := range want {
		if seen[b.tag+"-"+id] != 1 {
			t.Errorf("%s happened %d times", b.tag+"-"+id, seen[b.tag+"-"+id])
		}
	}
}

// linkIs waits until the daemon is connected over a transport.
func (w *killWorld) linkIs(t *testing.T, transport string) (st edge.Status) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); pause(t.Context(), 50*time.Millisecond) {
		var err error
		if st, err = w.edge.Status(t.Context()); err == nil && st.Connected && st.Transport == transport {
			return st
		}
	}
	t.Fatalf("the link is %q, not %s, after %s\n%s", st.Transport, transport, patience, w.edge.Daemon.Tail())
	return st
}
