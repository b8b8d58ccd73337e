package cli

import (
	"bytes"
	"testing"

	"bivouac/server/api/apiv1"
)

// Who waits for a turn is told what becomes of its sandboxes; a state of a newer
// server is passed over.
func TestSandboxesThatMove(t *testing.T) {
	f := &follower{app: &app{}, turn: "trn_1", tools: map[string]string{}, names: map[string]string{"run_1": "laptop"}}
	for state, want := range map[string]string{
		"frozen":  "stands still on laptop (no word from the server)",
		"running": "goes on where it stood still, on laptop",
		"killed":  "its sandboxes on laptop were ended (no word from the server)",
		"dancing": "",
	} {
		e := &apiv1.Event{Type: "sandbox.moved", Data: `{"state":"` + state + `","runner":"run_1"}`, Payload: "no word from the server"}
		if got := f.sentence(t.Context(), e); got != want {
			t.Errorf("%s: %q, want %q", state, got, want)
		}
	}
}

// Who did not reach whom is said at the first try, with what to do about it, and not
// again while nothing else happens. A model that answers, and fails again, is news.
func TestWhoDidNotReachTheBroker(t *testing.T) {
	f := &follower{app: &app{err: new(bytes.Buffer), out: new(bytes.Buffer), config: t.TempDir()}, turn: "trn_1", tools: map[string]string{}, names: map[string]string{"run_1": "laptop"}}
	for _, c := range []struct{ data, want string }{
		{`{"code":"unavailable","unreachable":"broker","runner":"run_1"}`, "laptop cannot reach the broker; it tries a few times. What is in the way says bivouac-edge doctor  (on that machine)"},
		{`{"code":"unavailable","unreachable":"broker","runner":"run_1"}`, ""},
		{`{"code":"unavailable","unreachable":"broker"}`, "the server cannot reach its broker; it tries a few times. Start it: bivouac-broker run  (where it is; bivouac doctor says more)"},
		{`{"code":"unavailable","unreachable":"broker"}`, ""},
		{`{"code":"rate_limited"}`, "the model could not be asked (rate_limited); it is asked again a few times"},
		{`{"code":"budget_exhausted"}`, ""},
	} {
		if got := f.sentence(t.Context(), &apiv1.Event{Type: "model.failed", Data: c.data}); got != c.want {
			t.Errorf("%s: %q, want %q", c.data, got, c.want)
		}
	}
	if err := f.handle(t.Context(), &apiv1.WatchEventsResponse{Kind: &apiv1.WatchEventsResponse_Event{Event: &apiv1.Event{TurnId: "trn_1", Type: "model.answered"}}}); err != nil {
		t.Fatal(err)
	}
	if got := f.sentence(t.Context(), &apiv1.Event{Type: "model.failed", Data: `{"code":"rate_limited"}`}); got == "" {
		t.Error("a failure after an answer is not said")
	}
}

// An attempt that no machine got ended nowhere; one that a machine had ended there.
func TestAttemptEndsWhereItWas(t *testing.T) {
	f := &follower{app: &app{}, turn: "trn_1", tools: map[string]string{}, names: map[string]string{"run_1": "laptop"}}
	for data, want := range map[string]string{
		`{"state":"FAILED","reason":"not_placed"}`:                          "the attempt ended: failed (not_placed)",
		`{"state":"FAILED","reason":"not_placed","runner":""}`:              "the attempt ended: failed (not_placed)",
		`{"state":"INTERRUPTED","reason":"lease_expired","runner":"run_1"}`: "the attempt on laptop ended: interrupted (lease_expired)",
	} {
		if got := f.sentence(t.Context(), &apiv1.Event{Type: "attempt.ended", Data: data}); got != want {
			t.Errorf("%s: %q, want %q", data, got, want)
		}
	}
}

// A turn that has an allocation of its own says so, and by which job; one that shares says none.
func TestWorksWhereItIs(t *testing.T) {
	f := &follower{app: &app{}, turn: "trn_1", tools: map[string]string{}, names: map[string]string{"run_1": "node-1"}}
	for data, want := range map[string]string{
		`{"runner":"run_1","boundary":"process","limits":"cgroup"}`:                             "works in a sandbox on node-1 (process, limits by cgroup)",
		`{"runner":"run_1","boundary":"process","limits":"cgroup","allocation":"bivouac-01-1"}`: "works in a sandbox on node-1 (process, limits by cgroup) in an allocation of its own (job bivouac-01-1)",
	} {
		if got := f.sentence(t.Context(), &apiv1.Event{Type: "attempt.started", Data: data}); got != want {
			t.Errorf("%s: %q, want %q", data, got, want)
		}
	}
}
