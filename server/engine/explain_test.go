package engine_test

import (
	"strings"
	"testing"
	"time"

	"bivouac/consul/refused"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// A call that the paths refused tells the person what to write where; what the
// model reads stays one sentence. Another refusal, and an upstream that only
// talks like one, have nothing to paste.
func TestExplainMendsAPath(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		sentence := refused.Sentence("agent-assistant", "weather", refused.NoEntry)
		forecast := et.Calls(et.Call{ID: "f", Alias: "forecast", Arguments: `{"city":"Oslo"}`})
		explained := func(serve et.ToolFunc) engine.Explanation {
			w.Broker.Serve("http:forecast", serve)
			w.Broker.Say(et.Script(forecast, et.Text("sorry")))
			turn := w.Submit(w.Session("assistant"), "weather?")
			w.Settle()
			wantState(t, w, turn.ID, session.Completed, "")
			x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		x := explained(func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
			return nil, protocol.Errorf(protocol.CodePolicyDenied, "%s", sentence)
		})
		if len(x.Pastes) != 1 || x.Pastes[0].Where != "/etc/paths/weather.hcl on the broker's machine" || !strings.Contains(x.Pastes[0].Text, `{ Name = "agent-assistant", Action = "allow" }`) {
			t.Errorf("%+v", x.Pastes)
		}
		if text := lastResult(w).GetText(); text != "It did not run: "+sentence {
			t.Errorf("the model read %q", text)
		}
		for name, serve := range map[string]et.ToolFunc{
			"another refusal": func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
				return nil, protocol.Errorf(protocol.CodePolicyDenied, "the data boundary")
			},
			"an upstream": func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
				return &brokerv1.InvokeResponse{HttpStatus: 403, ContentType: "text/plain", Body: []byte(sentence)}, nil
			},
		} {
			if x := explained(serve); len(x.Pastes) != 0 {
				t.Errorf("%s: %+v", name, x.Pastes)
			}
		}
	})
}

// Who denied is told to people; the code that the model reads stays.
func TestExplainNamesWhoDenied(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("understood")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		approve(t, w, turn.ID, false)
		w.Settle()
		x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
		if err != nil || !strings.Contains(x.WaitingFor, "files.write was denied by ada") {
			t.Errorf("%+v, %v", x, err)
		}
		if res := lastResult(w); res.GetCode() != string(protocol.CodePolicyDenied) {
			t.Errorf("the model saw %v", res)
		}
	})
}

// A turn that ended for a reason that somebody can mend says by which commands, with its
// agent's name in them; one that went well, or that a person denied, has none.
func TestExplainSaysWhatToTryAfterTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		answer et.Answer
		revoke bool // while it runs
		reason string
		try    []string
	}{
		"no key":       {et.Fail(protocol.Errorf(protocol.CodeUnauthenticated, "the provider refused the key")), false, "model_auth", []string{"bivouac doctor", "bivouac credential set", "bivouac grant create --agent assistant"}},
		"no provider":  {et.Fail(protocol.Errorf(protocol.CodeDeadlineExceeded, "no answer")), false, "model_unavailable", []string{"bivouac doctor", "bivouac-broker doctor"}},
		"no authority": {et.Calls(write), true, "grant_revoked", []string{"bivouac grant create --agent assistant", "bivouac chat --new --agent assistant"}},
		"all well":     {et.Text("hello"), false, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, _ *et.Runner) {
				g, err := w.Engine.CreateGrant(ctx(), w.Me(), engine.NewGrant{Agent: "assistant", Credentials: []string{"weather-token"}})
				if err != nil {
					t.Fatal(err)
				}
				w.Broker.Say(et.Script(c.answer))
				turn := w.Submit(w.Session("assistant"), "hello")
				w.Settle()
				if c.revoke {
					if _, err := w.Engine.RevokeGrant(ctx(), w.Me(), g.ID, ""); err != nil {
						t.Fatal(err)
					}
				}
				w.Sleep(time.Minute)
				if got := w.Turn(turn.ID); got.Reason != c.reason {
					t.Fatalf("the turn is %s with %q", got.State, got.Reason)
				}
				x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
				if err != nil || len(x.Remedies) != len(c.try) {
					t.Fatalf("%q, %v", x.Remedies, err)
				}
				for i, want := range c.try {
					if !strings.HasPrefix(x.Remedies[i], want) {
						t.Errorf("%q, want %q", x.Remedies[i], want)
					}
				}
			})
		})
	}
}

// The internal digest of a file is shown with its own arguments, not with the
// write that it prepares; the write keeps all of its own.
func TestDigestShowsItsOwnArguments(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(write), et.Text("done")))
		turn := w.Submit(w.Session("assistant"), "write")
		w.Settle()
		seen := map[string]string{}
		for _, a := range w.Actions(turn.ID) {
			seen[a.Tool], _ = engine.ShownArguments(a)
		}
		if seen["files.digest"] != `{"path":"home/todo.txt"}` || !strings.Contains(seen["files.write"], `"content":"new"`) {
			t.Errorf("%v", seen)
		}
	})
}

// A definition that the broker cannot serve is stored, and says what is missing;
// one that it can says nothing, and neither does one whose broker is silent.
func TestApplyWarnsOfWhatTheBrokerLacks(t *testing.T) {
	inWorld(t, func(w *et.World, _ *et.Runner) {
		w.Settle()
		apply := func(src string) engine.AppliedAgent {
			a, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "agent.hcl", Source: []byte(src)})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		if a := apply(et.Coder); len(a.Warnings) != 0 {
			t.Errorf("the coder: %v", a.Warnings)
		}
		lost := strings.Replace(et.Coder, `route = "scripted"`, `route = "nowhere"`, 1)
		a := apply(lost)
		if len(a.Warnings) != 1 || !strings.Contains(a.Warnings[0], `no model route "nowhere"`) || !a.Changed {
			t.Errorf("%v, %t", a.Warnings, a.Changed)
		}
		unsent := strings.Replace(et.Assistant, `destination = "mail"`, `destination = "post"`, 1)
		if a := apply(unsent); len(a.Warnings) != 1 || !strings.Contains(a.Warnings[0], `no destination "post", which the tool send calls`) {
			t.Errorf("the assistant's destinations: %v", a.Warnings)
		}
		w.RestartUncertified()
		if a := apply(lost + "\n"); len(a.Warnings) != 0 {
			t.Errorf("nothing is known, and %v", a.Warnings)
		}
	})
}
