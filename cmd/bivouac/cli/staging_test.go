package cli

import (
	"bytes"
	"strings"
	"testing"

	"bivouac/server/api/apiv1"
)

func stagingOf(turn string, sent int64) *apiv1.WatchEventsResponse {
	return &apiv1.WatchEventsResponse{Kind: &apiv1.WatchEventsResponse_Staging{Staging: &apiv1.Staging{TurnId: turn, RunnerId: "run_1", SentBytes: sent, OfBytes: 50_000_000}}}
}

// On a terminal one line says how far the workspace has come, and is taken back before
// anything else is written; without a terminal, and of another turn, nothing is said.
func TestStagingIsShownOnATerminal(t *testing.T) {
	for _, c := range []struct {
		tty  bool
		turn string
		want bool
	}{{true, "trn_1", true}, {false, "trn_1", false}, {true, "trn_2", false}} {
		var out, err bytes.Buffer
		f := &follower{app: &app{out: &out, err: &err}, turn: "trn_1", tools: map[string]string{}, names: map[string]string{"run_1": "laptop"}}
		f.stage = &progress{w: &err, tty: c.tty}
		for _, sent := range []int64{10_000_000, 20_000_000} {
			if e := f.handle(t.Context(), stagingOf(c.turn, sent)); e != nil {
				t.Fatal(e)
			}
		}
		said := err.String()
		if strings.Contains(said, "copying the workspace to laptop: 20 MB of 50 MB") != c.want || !c.want && said != "" {
			t.Errorf("%+v: %q", c, said)
		}
		if e := f.handle(t.Context(), &apiv1.WatchEventsResponse{Kind: &apiv1.WatchEventsResponse_Event{Event: &apiv1.Event{TurnId: "trn_1", Type: "attempt.queued", Data: "{}"}}}); e != nil {
			t.Fatal(e)
		}
		if rest := err.String()[len(said):]; strings.HasPrefix(rest, "\r\x1b[K") != c.want || !strings.Contains(rest, "waits for a machine") {
			t.Errorf("%+v: then %q", c, rest)
		}
		if out.Len() != 0 {
			t.Errorf("%+v: on standard output %q", c, out.String())
		}
	}
}
