package server_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/api/apiv1"
)

// What a machine says of itself is kept for every machine and read by people: a server
// takes no more of it than it is for, and no character that a terminal obeys. A machine
// that is refused changes nothing of what it said before; an honest one is shown. INV-9.
func TestFactsOfAHostileMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alice := w.as(w.token)
		m := w.join(alice, "laptop", "turn", "files.read")
		epoch := w.connectAble(m)
		connect := func(f *runnerv1.Facts) error {
			_, err := m.api.Connect(t.Context(), &runnerv1.ConnectRequest{CapabilityVersion: protocol.Current(),
				OldestCapabilityVersion: protocol.Oldest(), BootNonce: "boot", LastEpoch: epoch, Facts: f})
			return protocol.FromConnect(err)
		}
		announce := func(f *runnerv1.Facts) error {
			_, err := m.api.Announce(t.Context(), &runnerv1.AnnounceRequest{Epoch: epoch, Facts: f})
			return protocol.FromConnect(err)
		}
		shown := func() string {
			t.Helper()
			res, err := alice.Runners.ListRunners(t.Context(), &apiv1.ListRunnersRequest{})
			if err != nil || len(res.GetRunners()) != 1 {
				t.Fatalf("%v, %v", res, err)
			}
			return strings.Join(res.GetRunners()[0].GetSecondKeys(), " ")
		}
		good := ableFacts()
		good.SecondKeys = []string{"turn"}
		if err := announce(good); err != nil {
			t.Fatal(err)
		}
		for name, spoil := range map[string]func(f *runnerv1.Facts){
			"a terminal's command": func(f *runnerv1.Facts) { f.SecondKeys = []string{"turn\x1b[2J"} },
			"a megabyte":           func(f *runnerv1.Facts) { f.SandboxProblem = strings.Repeat("x", 1<<20) },
			"ten thousand names": func(f *runnerv1.Facts) {
				f.Harnesses = make([]*runnerv1.Harness, 10_000)
				for i := range f.Harnesses {
					f.Harnesses[i] = &runnerv1.Harness{Name: "native"}
				}
			},
		} {
			f := ableFacts()
			spoil(f)
			for how, say := range map[string]func(*runnerv1.Facts) error{"connect": connect, "announce": announce} {
				if err := say(f); protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), "bivouac-edge doctor") || len(err.Error()) > 300 {
					t.Errorf("%s by %s: %v", name, how, err)
				}
			}
		}
		if got := shown(); got != "turn" {
			t.Errorf("the machine is shown with %q", got)
		}
		if err := connect(good); err != nil {
			t.Errorf("an honest machine afterwards: %v", err)
		}
	})
}
