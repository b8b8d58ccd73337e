package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

// read is a call that needs nobody's approval at the server.
var read = et.Call{ID: "r", Alias: "files_read", Arguments: `{"path":"home/todo.txt"}`}

// askedAction has a read wait for the owner of the machine, and returns its attempt.
func askedAction(t *testing.T, w *et.World, r *et.Runner) (session.Turn, *et.Held) {
	t.Helper()
	r.Keyed = true
	w.Broker.Say(et.Script(et.Calls(read), et.Text("so it is")))
	turn := w.Submit(w.Session("assistant"), "read it")
	w.Settle()
	acts := w.Actions(turn.ID)
	if len(acts) != 1 || r.Holds(acts[0].Attempt) == nil {
		t.Fatalf("the machine holds nothing: %+v", acts)
	}
	return turn, r.Holds(acts[0].Attempt)
}

// Who asks at the server what waits sees also what waits for the owner of a machine,
// and is refused to decide it; a stranger sees nothing. INV-6.
func TestWaitingForAnOwnerIsListed(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := askedAction(t, w, r)
		list, err := w.Engine.OwnerQuestions(ctx(), w.Me())
		if err != nil || len(list) != 1 {
			t.Fatalf("%d question(s), %v", len(list), err)
		}
		q := list[0]
		if q.Attempt != h.ID || q.Turn != turn.ID || q.Runner != r.ID || q.Work != "files.read" || q.Machine == r.ID.String() ||
			!q.Until.After(time.Now()) || q.AskedAt.After(time.Now()) {
			t.Errorf("listed as %+v", q)
		}
		for _, id := range []string{h.ID.String(), turn.ID.String()} {
			err := w.Engine.NotDecidedHere(ctx(), w.Me(), id)
			if protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "bivouac-edge approve "+h.ID.String()) {
				t.Errorf("deciding %s here: %v", id, err)
			}
		}
		h.Append(&runnerv1.Record{Kind: &runnerv1.Record_OwnerDecided{OwnerDecided: &runnerv1.OwnerDecided{Decision: secondkey.Approved, Digest: q.Digest, By: "owner"}}})
		w.Settle()
		if list, err = w.Engine.OwnerQuestions(ctx(), w.Me()); err != nil || len(list) != 0 {
			t.Errorf("after the decision %v is listed, %v", list, err)
		}
		if err := w.Engine.NotDecidedHere(ctx(), w.Me(), h.ID.String()); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("what waits for nobody: %v", err)
		}
	})
}

// onDenied has the assistant say what follows from a denial.
func onDenied(t *testing.T, w *et.World, what string) {
	t.Helper()
	src := strings.Replace(et.Assistant, `approvals { ttl = "10m" }`, `approvals { on_denied = "`+what+`" }`, 1)
	if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "a.hcl", Source: []byte(src)}); err != nil {
		t.Fatal(err)
	}
}

// The denial of a machine's owner, and silence, follow on_denied of the agent as those
// of a person at the server do. Any other refusal of the machine is told to the model.
func TestOwnersDenialFollowsOnDenied(t *testing.T) {
	for _, what := range []string{"continue", "fail"} {
		for _, decision := range []string{secondkey.Denied, secondkey.Expired, ""} {
			t.Run(what+" "+decision, func(t *testing.T) {
				inWorld(t, func(w *et.World, r *et.Runner) {
					onDenied(t, w, what)
					turn, h := askedAction(t, w, r)
					if decision != "" {
						h.Append(&runnerv1.Record{Kind: &runnerv1.Record_OwnerDecided{OwnerDecided: &runnerv1.OwnerDecided{Decision: decision, By: "owner"}}})
					}
					h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{Status: protocol.ResultDenied,
						Code: string(protocol.CodePermissionDenied), Message: "The owner of the machine said no."}}})
					w.Settle()
					if a := w.Actions(turn.ID)[0]; a.State != session.Denied {
						t.Errorf("the action is %s", a.State)
					}
					if what == "fail" && decision != "" {
						wantState(t, w, turn.ID, session.Failed, "approval_denied")
						if got := w.Turn(turn.ID).Message; got != "The owner of the machine said no." {
							t.Errorf("the turn says %q", got)
						}
					} else {
						wantState(t, w, turn.ID, session.Completed, "")
					}
				})
			})
		}
	}
}

// keyedOffer has a coding turn offered to a machine whose owner holds a second key over
// turns, and returns what a decline of it has to name.
func keyedOffer(t *testing.T, w *et.World, r *et.Runner) (session.Turn, *runnerv1.DeclineRequest, string) {
	t.Helper()
	r.Claims, r.Facts.SecondKeys = false, []string{secondkey.Turn}
	r.Connect()
	turn := w.Submit(w.Session("coder"), "do it")
	w.Settle()
	o := r.Offered
	if o == nil || o.GetTurn() == nil {
		t.Fatalf("the machine was offered %v", o)
	}
	return turn, &runnerv1.DeclineRequest{AttemptId: o.AttemptId, Epoch: r.Epoch(), Reason: "its owner is asked"}, secondkey.TurnDigest(r.ID, o)
}

// A turn that a machine does not take before its owner has answered is listed and
// explained, while the machine says so about the turn that it was offered; it is one
// event however often it is said. INV-6.
func TestTurnThatWaitsForAnOwnerIsListed(t *testing.T) {
	for name, honest := range map[string]bool{"about the turn": true, "about another one": false} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *et.World, r *et.Runner) {
				turn, no, digest := keyedOffer(t, w, r)
				if !honest {
					digest = "sha256:" + digestOf("something else")
				}
				for range 3 {
					no.OwnerAsked = &runnerv1.OwnerAsked{Digest: digest, WaitMs: time.Hour.Milliseconds()}
					if err := w.Engine.Decline(ctx(), r.Caller(), no); err != nil {
						t.Fatal(err)
					}
					w.Sleep(30 * time.Second)
				}
				list, err := w.Engine.OwnerQuestions(ctx(), w.Me())
				if err != nil || len(list) == 1 != honest {
					t.Fatalf("listed: %+v, %v", list, err)
				}
				x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
				if err != nil || strings.Contains(x.WaitingFor, "who holds a second key over turns") != honest ||
					slices.ContainsFunc(x.Remedies, func(s string) bool { return strings.Contains(s, "bivouac-edge approve "+no.AttemptId) }) != honest {
					t.Errorf("explained as %q, %v, %v", x.WaitingFor, x.Remedies, err)
				}
				n := 0
				for _, kind := range w.Types(turn.Session) {
					if kind == session.OwnerAsked {
						n++
					}
				}
				if n == 1 != honest {
					t.Errorf("%d events say that the owner is asked", n)
				}
			})
		})
	}
}

// coderWho applies the coder with what follows from a denial.
func coderWho(t *testing.T, w *et.World, onDenied string) {
	t.Helper()
	coder := strings.TrimSuffix(strings.TrimRight(et.Coder, "\n "), "}") + "  approvals { on_denied = \"" + onDenied + "\" }\n}\n"
	if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "c.hcl", Source: []byte(coder)}); err != nil {
		t.Fatal(err)
	}
}

// decisions of machines' owners in the record of a session.
func decisions(w *et.World, id protocol.SessionID) (n int) {
	for _, kind := range w.Types(id) {
		if kind == session.OwnerDecided {
			n++
		}
	}
	return n
}

// A turn that the owner of a machine denied ends where its agent says so; else it waits
// for another machine. Whatever ends it is in the record once, whether the question
// came before or never.
func TestOwnersDenialOfATurn(t *testing.T) {
	for _, what := range []string{"continue", "fail"} {
		for _, asked := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s asked=%v", what, asked), func(t *testing.T) {
				inWorld(t, func(w *et.World, r *et.Runner) {
					coderWho(t, w, what)
					turn, no, digest := keyedOffer(t, w, r)
					if asked {
						no.OwnerAsked = &runnerv1.OwnerAsked{Digest: digest, WaitMs: time.Hour.Milliseconds()}
						if err := w.Engine.Decline(ctx(), r.Caller(), no); err != nil {
							t.Fatal(err)
						}
						w.Sleep(30 * time.Second) // it is offered again
						no.OwnerAsked = nil
					}
					no.OwnerDecided = &runnerv1.OwnerDecided{Digest: digest, Decision: secondkey.Denied, Reason: "not today"}
					if err := w.Engine.Decline(ctx(), r.Caller(), no); err != nil {
						t.Fatal(err)
					}
					w.Settle()
					if what == "fail" {
						wantState(t, w, turn.ID, session.Failed, "approval_denied")
						if got := w.Turn(turn.ID).Message; !strings.Contains(got, "not today") {
							t.Errorf("the turn says %q", got)
						}
					} else if now := w.Turn(turn.ID); now.State.Terminal() {
						t.Errorf("the turn ended as %s: %s", now.State, now.Message)
					}
					if n := decisions(w, turn.Session); (n == 1) != (asked || what == "fail") {
						t.Errorf("%d events say that the owner decided", n)
					}
				})
			})
		}
	}
}

// A decision about something else than the machine was offered is none, also beside
// the right question: it neither ends the turn nor is in the record. INV-6.
func TestDecisionIsAboutTheTurn(t *testing.T) {
	for _, honest := range []bool{true, false} {
		t.Run(fmt.Sprintf("honest=%v", honest), func(t *testing.T) {
			inWorld(t, func(w *et.World, r *et.Runner) {
				coderWho(t, w, "fail")
				turn, no, digest := keyedOffer(t, w, r)
				no.OwnerAsked = &runnerv1.OwnerAsked{Digest: digest, WaitMs: time.Hour.Milliseconds()}
				no.OwnerDecided = &runnerv1.OwnerDecided{Digest: digest, Decision: secondkey.Denied}
				if !honest {
					no.OwnerDecided.Digest = "sha256:" + digestOf("something else")
				}
				if err := w.Engine.Decline(ctx(), r.Caller(), no); err != nil {
					t.Fatal(err)
				}
				w.Settle()
				if ended := w.Turn(turn.ID).State == session.Failed; ended != honest {
					t.Errorf("the turn is %s", w.Turn(turn.ID).State)
				}
				if n := decisions(w, turn.Session); (n == 1) != honest {
					t.Errorf("%d events say that the owner decided", n)
				}
			})
		})
	}
}

// A question whose time is over is not listed, also when its machine has not said so
// yet, and nobody is told to decide it there.
func TestQuestionEndsWithItsTime(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := askedAction(t, w, r)
		list, err := w.Engine.OwnerQuestions(ctx(), w.Me())
		if err != nil || len(list) != 1 {
			t.Fatalf("%d question(s), %v", len(list), err)
		}
		for _, c := range []struct {
			at    time.Time
			waits bool
		}{{list[0].Until.Add(-5 * time.Second), true}, {list[0].Until.Add(5 * time.Second), false}} {
			w.Sleep(time.Until(c.at))
			list, err := w.Engine.OwnerQuestions(ctx(), w.Me())
			if err != nil || (len(list) == 1) != c.waits || w.Turn(turn.ID).State.Terminal() {
				t.Errorf("waits=%v: listed %v, %v, and the turn is %s", c.waits, list, err, w.Turn(turn.ID).State)
			}
			x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
			if err != nil || slices.ContainsFunc(x.Remedies, func(s string) bool { return strings.Contains(s, "bivouac-edge approve "+h.ID.String()) }) != c.waits {
				t.Errorf("waits=%v: explained by %v, %v", c.waits, x.Remedies, err)
			}
		}
	})
}
