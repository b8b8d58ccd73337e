package harness_test

import (
	"testing"

	"bivouac/server/broker/provider"
	"bivouac/test/harness"
)

// The same turn over every wire format: several calls in one answer, their results,
// an approval in between, and not a word of the provider's in what is kept.
func TestPersonalTurnInEveryFormat(t *testing.T) {
	paths := map[string]string{provider.OpenAIChat: "/v1/chat/completions", provider.OpenAIResponses: "/v1/responses", provider.Anthropic: "/v1/messages"}
	for _, format := range provider.Formats {
		t.Run(format, func(t *testing.T) { inFormat(t, format, paths[format]) })
	}
}

func inFormat(t *testing.T, format, path string) {
	harness.Test(t, harness.Options{Script: packing, Format: format}, func(t *testing.T, w *harness.World) {
		alice, a := w.Person("alice"), w.Edge("a")
		a.Write("trip.txt", "Bergen, three days\n")
		alice.Apply(assistant)
		alice.PutCredential(harness.ToolCredential, harness.ToolKey)
		alice.Grant("assistant", harness.ToolCredential)
		session := alice.Open("assistant")
		turn := alice.Submit(session, "m1", "make a packing list")
		alice.Decide(alice.AwaitApproval(), true)
		if got := alice.Completed(turn); got.GetAnswer() != "It is written." {
			t.Errorf("answer %q", got.GetAnswer())
		}
		if got := a.Read("packing.txt"); got != "rain jacket\n" {
			t.Errorf("the file holds %q", got)
		}
		got := w.Provider.Received()
		if len(got) != 4 {
			t.Errorf("%d model calls", len(got))
		}
		for _, r := range got {
			if r.Path != path {
				t.Errorf("a request went to %s", r.Path)
			}
		}
		noSecrets(t, w, alice, session)
	})
}
