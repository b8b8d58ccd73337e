//go:build linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge"
	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
)

// In a network that eats UDP the edge connects over TCP, says which port is closed,
// and does both turns. Without the firewall the same machine comes over QUIC. How long
// it takes is printed; that it is two seconds at most is proven in virtual time, by
// TestVirtualUDPBlockedGoesOverTCP of edge/link.
func TestUDPBlocked(t *testing.T) {
	control, edgeNet := twoNetworks(t)
	bin, err := stack.Build()
	if err != nil {
		t.Fatal(err)
	}
	lift := edgeNet.firewall(t, dropSilently)
	w := newKillWorld(t, killConfig{bin: bin, tag: "udp", control: control.place(), edge: edgeNet.place()})
	blocked := func(how string) {
		t.Helper()
		st, took := w.restartEdge(t)
		fmt.Printf("udp blocked %s: connected over %s %d ms after the start of the process (target: 2000 ms); %s\n", how, st.Transport, took.Milliseconds(), st.QUICProblem)
		if st.Transport != "http/2" || !strings.Contains(st.QUICProblem, "UDP port "+control.address) {
			t.Errorf("%s: the link runs over %q, the problem is %q", how, st.Transport, st.QUICProblem)
		}
	}
	blocked("silently")
	w.bothTurns(t, "http/2")
	lift()
	lift = edgeNet.firewall(t, dropLoudly)
	blocked("with an error")
	lift()

	st, took := w.restartEdge(t)
	fmt.Printf("udp open: connected over %s %d ms after the start of the process\n", st.Transport, took.Milliseconds())
	if st = w.linkIs(t, "http/3"); st.QUICProblem != "" { // on a busy machine TCP may be there first, and QUIC is found later
		t.Errorf("without the firewall the problem is %q", st.QUICProblem)
	}
}

// restartEdge starts the daemon anew and asks it, as its owner does, until it is
// connected.
func (w *killWorld) restartEdge(t *testing.T) (edge.Status, time.Duration) {
	t.Helper()
	if err := w.edge.Daemon.End(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := w.edge.Daemon.Start(); err != nil {
		t.Fatal(err)
	}
	for end := began.Add(patience); time.Now().Before(end); pause(t.Context(), 10*time.Millisecond) {
		st, err := w.edge.Status(t.Context())
		if took := time.Since(began); err == nil && st.Connected {
			return st, took
		}
	}
	t.Fatalf("not connected after %s\n%s", patience, w.edge.Daemon.Tail())
	return edge.Status{}, 0
}

// bothTurns does the personal and the coding turn, and looks outside for what they did.
func (w *killWorld) bothTurns(t *testing.T, transport string) {
	t.Helper()
	end := time.Now().Add(patience)
	personal := w.settled(w.submit("personal", killPersonal), end)
	if e := endOf(personal); e.State != "COMPLETED" {
		t.Fatalf("the personal turn is %+v: %s\n%s", e, personal.GetMessage(), w.tails())
	}
	seen := w.out.effects(w.tag)
	for _, id := range []string{"udp-post", "udp-put", "udp-file"} {
		if seen[id] != 1 {
			t.Errorf("%s happened %d times", id, seen[id])
		}
	}
	w.needsSandbox()
	w.session, w.tag = "", "udpcode"
	coding := w.settled(w.submit("coding", killCoding), end)
	if e := endOf(coding); e.State != "COMPLETED" {
		t.Fatalf("the coding turn is %+v: %s\n%s", e, coding.GetMessage(), w.tails())
	}
	added, _ := w.lines(coding)
	if added["udpcode-line1"] != 1 || added["udpcode-line2"] != 1 || w.out.effects(w.tag)["udpcode-post"] != 1 {
		t.Errorf("the patch adds %v, outside is %v", added, w.out.effects(w.tag))
	}
	list, err := w.API.Runners.ListRunners(t.Context(), &apiv1.ListRunnersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list.GetRunners(), func(r *apiv1.Runner) bool { return r.GetConnected() && r.GetTransport() == transport }) {
		t.Errorf("the server does not see a runner over %s: %v", transport, list.GetRunners())
	}
}
