package engine_test

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// A tool that was refused before it left, as one whose credential was deleted, stands in
// the explanation of a turn that ended well, with the command that mends it: once, however
// often the model called it. What an upstream says is no refusal.
func TestExplainNamesWhatWasRefused(t *testing.T) {
	const why = `the tenant has no credential "weather-token": store it with: bivouac credential set weather-token`
	inWorld(t, func(w *et.World, _ *et.Runner) {
		explained := func(serve et.ToolFunc) string {
			w.Broker.Serve("http:forecast", serve)
			w.Broker.Say(et.Script(et.Calls(et.Call{ID: "f", Alias: "forecast", Arguments: `{"city":"Oslo"}`}),
				et.Calls(et.Call{ID: "g", Alias: "forecast", Arguments: `{"city":"Rome"}`}), et.Text("sorry")))
			turn := w.Submit(w.Session("assistant"), "weather?")
			w.Settle()
			wantState(t, w, turn.ID, session.Completed, "")
			x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
			if err != nil {
				t.Fatal(err)
			}
			return x.WaitingFor
		}
		refused := explained(func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
			return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "%s", why)
		})
		if strings.Count(refused, "\nhttp:forecast did not run: "+why) != 1 || strings.Count(refused, "did not run") != 1 {
			t.Errorf("a refusal: %q", refused)
		}
		answered := explained(func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
			return &brokerv1.InvokeResponse{HttpStatus: 403, ContentType: "text/plain", Body: []byte("It did not run: " + why)}, nil
		})
		if strings.Contains(answered, "did not run") {
			t.Errorf("an answer of the upstream: %q", answered)
		}
	})
}
