package cli

import (
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
