package harness_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac/test/harness"
)

// asker is a model on a runner that asks the server for one tool.
const asker = `
rule "ask" {
  when { results = 0 }
  call "forecast" {
    arguments = { city = "Bergen" }
  }
}
rule "say" {
  when { result_of = "forecast" }
  text = "It said: ${last_result}"
}
`

// scout is a coder that may also ask for the forecast.
var scout = strings.Replace(strings.Replace(coder, `"coder"`, `"scout"`, 1), "  lease {", forecastTool+"  lease {", 1)

// asking starts a turn of an agent on edge "a" whose tool call is with an upstream
// that takes three seconds to answer.
func asking(t *testing.T, w *harness.World, agent string) (alice *harness.Person, session, turn string) {
	t.Helper()
	w.Tools.Answers(func(rw http.ResponseWriter, r *http.Request) {
		time.Sleep(3 * time.Second)
		_, _ = rw.Write([]byte(`{"sky":"rain"}`))
	})
	alice = w.Person("alice")
	w.Edge("a")
	alice.Apply(agent)
	alice.PutCredential(harness.ToolCredential, harness.ToolKey)
	alice.Grant("scout", harness.ToolCredential)
	session = alice.Open("scout")
	turn = alice.Submit(session, "m1", "what is the weather")
	w.Until("the tool is asked", time.Minute, func() bool { return len(w.Tools.Requests()) == 1 })
	return alice, session, turn
}

// answeredOnce proves that the worker which waited got one answer and went on.
func answeredOnce(t *testing.T, alice *harness.Person, session, turn string) (answer string) {
	t.Helper()
	got := alice.Completed(turn)
	if len(got.GetAttempts()) != 1 {
		t.Errorf("the turn ended as %v", got)
	}
	inOrder(t, alice, session, "forecast")
	return got.GetAnswer()
}

// The answer of a tool waits in the machine's mailbox while it cannot be reached.
func TestToolAnswerWaitsInTheMailbox(t *testing.T) {
	harness.Test(t, harness.Options{Script: asker}, func(t *testing.T, w *harness.World) {
		alice, session, turn := asking(t, w, scout)
		w.Sever("a", harness.Server)
		time.Sleep(4 * time.Second)
		if n := len(w.Log.Find(harness.Server, "action settled", "state", "SUCCEEDED")); n != 1 {
			t.Fatalf("%d actions are settled while the machine is away", n)
		}
		w.Mend("a", harness.Server)
		if got := answeredOnce(t, alice, session, turn); !strings.Contains(got, "rain") || len(w.Tools.Requests()) != 1 {
			t.Errorf("answer %q after %d requests", got, len(w.Tools.Requests()))
		}
	})
}

// The server is killed while it waits for a tool. Its next process sends an
// idempotent call again, under the same key; of any other it asks the broker what
// became of it, and does not make it again. INV-5.
func TestServerRestartWithAToolCallUnderWay(t *testing.T) {
	for recovery, sent := range map[string]int{"idempotent": 2, "opaque": 1} {
		t.Run(recovery, func(t *testing.T) {
			harness.Test(t, harness.Options{Script: asker}, func(t *testing.T, w *harness.World) {
				alice, session, turn := asking(t, w, strings.Replace(scout, `"idempotent"`, `"`+recovery+`"`, 1))
				time.Sleep(time.Second)
				w.RestartServer()
				answer := answeredOnce(t, alice, session, turn)
				got := w.Tools.Requests()
				if len(got) != sent || got[0].Key == "" || got[0].Key != got[len(got)-1].Key {
					t.Errorf("the upstream got %v", got)
				}
				if strings.Contains(answer, "rain") != (recovery == "idempotent") {
					t.Errorf("the model was told %q", answer)
				}
			})
		})
	}
}
