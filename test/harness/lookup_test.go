package harness_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac/test/harness"
)

// parcels is a model that sends one parcel and says what came of it.
const parcels = `
rule "send" {
  when { results = 0 }
  call "parcel" {
    arguments = { id = "p1" }
  }
}
rule "say" {
  when { result_of = "parcel" }
  text = "It came to: ${last_result}"
}
`

// sender has an outbound tool that says how it can be looked up.
var sender = strings.Replace(assistant, forecastTool, `
  tool "parcel" {
    kind        = "http"
    description = "Sends a parcel."
    destination = "tools"
    method      = "POST"
    path        = "/v1/parcels"
    body        = ["id"]
    credential  = "`+harness.ToolCredential+`"
    timeout     = "10s"
    effect      = "R3"
    recovery    = "inspectable"
    lookup {
      path     = "/v1/parcels/{id}"
      contains = "parcel {id}"
    }
    input = { type = "object", required = ["id"], properties = { id = { type = "string" } } }
  }
`, 1)

// The connection breaks under an outbound call. The real broker's call log says
// that it left and that no answer comes, and the declared look-up, which the broker
// sends with the tool's own credential, says whether it happened: nobody has to
// say "unknown", and nothing is sent twice. INV-5.
func TestLostAnswerIsLookedUp(t *testing.T) {
	for _, c := range []struct {
		name     string
		happened bool
		status   string
		told     string
	}{
		{"it happened", true, "SUCCEEDED", "It was done: a look afterwards found it."},
		{"it did not happen", false, "FAILED", "It did not happen: a look afterwards did not find it."},
	} {
		t.Run(c.name, func(t *testing.T) {
			harness.Test(t, harness.Options{Script: parcels}, func(t *testing.T, w *harness.World) {
				alice := w.Person("alice")
				w.Edge("a")
				alice.Apply(sender)
				alice.PutCredential(harness.ToolCredential, harness.ToolKey)
				alice.Grant("assistant", harness.ToolCredential)
				w.Tools.Answers(func(rw http.ResponseWriter, r *http.Request) {
					switch {
					case r.Method == http.MethodPost:
						panic(http.ErrAbortHandler) // the answer is lost, whatever happened
					case c.happened:
						fmt.Fprint(rw, "here is parcel p1")
					default:
						http.NotFound(rw, r)
					}
				})
				turn := alice.Submit(alice.Open("assistant"), "m1", "send it")
				alice.Decide(alice.AwaitApproval(), true)
				done := alice.Completed(turn)
				if !strings.Contains(done.GetAnswer(), c.told) || len(unknown(t, alice)) != 0 {
					t.Errorf("answer %q, unknown %v", done.GetAnswer(), unknown(t, alice))
				}
				var posts, looks int
				var first time.Time
				for _, r := range w.Tools.Requests() {
					switch {
					case r.Method == http.MethodPost:
						posts++
						first = r.At
					case r.URI == "/v1/parcels/p1":
						looks++
					}
				}
				if posts != 1 || looks == 0 {
					t.Errorf("%d sendings, %d look-ups", posts, looks)
				}
				if waited := done.GetEndedAt().AsTime().Sub(first); !c.happened && waited < 10*time.Second {
					t.Errorf("its absence was believed after %s, when it could still arrive", waited)
				}
				for _, a := range done.GetActions() {
					if a.GetTool() == "http:parcel" && a.GetState() != "SUPERSEDED" && a.GetState() != c.status {
						t.Errorf("the action is %s", a.GetState())
					}
				}
			})
		})
	}
}
