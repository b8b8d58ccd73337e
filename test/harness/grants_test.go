package harness_test

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/api/apiv1"
	"bivouac/test/harness"
)

// sailor has two tools, each with a credential of its own.
var sailor = `
agent "sailor" {
  profile       = "personal"
  data_boundary = "personal"
  instructions  = "You help."
  model { route = "` + harness.Route + `" }
` + forecastTool + strings.NewReplacer("forecast", "tides", harness.ToolCredential, harness.OtherCredential).Replace(forecastTool) + `}
`

const sailing = `
rule "both" {
  when {
    user_contains = "both"
    results       = 0
  }
  call "forecast" { arguments = { city = "Bergen" } }
  call "tides" { arguments = { city = "Bergen" } }
}
rule "tides alone" {
  when {
    user_contains = "tides"
    results       = 0
  }
  call "tides" { arguments = { city = "Oslo" } }
}
rule "done" {
  when { result_of = "tides" }
  text = "Ready to sail."
}
`

// Two grants add up, each with a real credential in the keyring: a turn uses both, each
// call under its own. Revoking one ends what stood on it, refuses its credential by
// name and leaves the other: a call that is in flight under it goes on, and so does the
// conversation. INV-13, INV-17.
func TestGrantsAddUpWithTheirCredentials(t *testing.T) {
	harness.Test(t, harness.Options{Script: sailing}, func(t *testing.T, w *harness.World) {
		alice := w.Person("alice")
		alice.Apply(sailor)
		alice.PutCredential(harness.ToolCredential, harness.ToolKey)
		alice.PutCredential(harness.OtherCredential, harness.OtherKey)
		weather := alice.Grant("sailor", harness.ToolCredential)
		time.Sleep(time.Second)
		tides := alice.Grant("sailor", harness.OtherCredential)
		session := alice.Open("sailor")
		used := func() (names []string) {
			for _, r := range w.Tools.Requests() {
				names = append(names, r.Credential)
			}
			slices.Sort(names)
			return names
		}
		alice.Completed(alice.Submit(session, "m1", "both, please"))
		if got := used(); !slices.Equal(got, []string{harness.OtherCredential, harness.ToolCredential}) {
			t.Fatalf("the tools were called with %v", got)
		}

		w.Tools.Answers(func(out http.ResponseWriter, _ *http.Request) {
			time.Sleep(20 * time.Second)
			_, _ = out.Write([]byte("high"))
		})
		busy := alice.Submit(session, "m2", "the tides")
		w.Until("the call is in flight", time.Minute, func() bool { return len(w.Tools.Requests()) == 3 })
		revoke := func(g *apiv1.Grant) *apiv1.RevokeGrantResponse {
			t.Helper()
			res, err := alice.Grants.RevokeGrant(t.Context(), &apiv1.RevokeGrantRequest{GrantId: g.GetId(), Reason: "enough"})
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		revoke(weather)
		if w.GrantAlive(weather.GetId()) || !w.GrantAlive(tides.GetId()) {
			t.Error("the keyring does not have the one dead and the other alive")
		}
		if got := alice.Completed(busy); got.GetAnswer() != "Ready to sail." {
			t.Errorf("the turn in flight under the other grant says %q", got.GetAnswer())
		}
		w.Tools.Answers(nil)

		before := len(w.Tools.Requests())
		after := alice.Completed(alice.Submit(session, "m3", "both again"))
		if got := w.Tools.Requests()[before:]; len(got) != 1 || got[0].Credential != harness.OtherCredential {
			t.Errorf("after the revocation the tools got %+v", got)
		}
		if said := refusalOf(alice, session, after.GetId(), "forecast"); !strings.Contains(said, harness.ToolCredential) {
			t.Errorf("the refused call says %q", said)
		}

		w.Tools.Answers(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }) // until the broker hangs up
		last := alice.Submit(session, "m4", "the tides")
		w.Until("the last call is in flight", time.Minute, func() bool { return len(w.Tools.Requests()) == before+2 })
		revoke(tides)
		if got := alice.Ended(last); got.GetState() != "FAILED" || got.GetReason() != "grant_revoked" {
			t.Errorf("what stood on it ended as %s: %s", got.GetState(), got.GetReason())
		}
		_, err := alice.Turns.SubmitTurn(t.Context(), &apiv1.SubmitTurnRequest{SessionId: session, MessageId: "m5", Prompt: "both"})
		if err = protocol.FromConnect(err); err == nil || len(w.Tools.Requests()) != before+2 {
			t.Errorf("with no grant left: %v, %d requests", err, len(w.Tools.Requests()))
		}
		noSecrets(t, w, alice, session)
	})
}

// refusalOf is what the record says of a turn's call of a tool that did not run.
func refusalOf(p *harness.Person, session, turn, tool string) (said string) {
	for _, e := range p.EventsOf(session) {
		if e.GetTurnId() == turn && e.GetType() == "tool.finished" && strings.Contains(e.GetData(), tool) {
			said += e.GetData() + " " + decodedText(e.GetPayload())
		}
	}
	return said
}

// decodedText is what a tool's result says to the model.
func decodedText(payload string) string {
	var r runtimev1.ToolResult
	b, err := base64.StdEncoding.DecodeString(payload)
	if err != nil || proto.Unmarshal(b, &r) != nil {
		return payload
	}
	return r.GetText()
}
