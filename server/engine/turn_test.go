package engine_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"
	"testing/synctest"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/session"
)

func ctx() context.Context { return context.Background() }

// inWorld runs a test in virtual time, in a world with one connected runner.
func inWorld(t *testing.T, fn func(w *et.World, r *et.Runner), options ...et.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := et.New(t, options...)
		r := w.Join("laptop", "files.list", "files.read", "files.write")
		r.Files["home/todo.txt"] = "buy milk"
		w.Broker.Serve("http:forecast", reply("sunny"))
		w.Broker.Serve("http:send", reply("sent"))
		w.Broker.Serve("http:note", reply("noted"))
		w.Broker.Serve("http:order", reply("ordered"))
		w.Settle()
		fn(w, r)
		if err := w.Check(); err != nil {
			t.Error(err)
		}
	})
}

func digestOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func reply(body string) et.ToolFunc {
	return func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
		return &brokerv1.InvokeResponse{HttpStatus: 200, ContentType: "text/plain", Body: []byte(body)}, nil
	}
}

// wantState fails when a turn is not as it should be.
func wantState(t *testing.T, w *et.World, id protocol.TurnID, state session.TurnState, reason string) session.Turn {
	t.Helper()
	got := w.Turn(id)
	if got.State != state || got.Reason != reason {
		t.Fatalf("turn is %s{%s} (%s), want %s{%s}; events %v", got.State, got.Reason, got.Message, state, reason, w.Types(got.Session))
	}
	return got
}

func approve(t *testing.T, w *et.World, id protocol.TurnID, yes bool) session.Approval {
	t.Helper()
	for _, a := range w.Approvals(id) {
		if a.State == session.ApprovalPending {
			a, err := w.Engine.DecideApproval(ctx(), w.Me(), engine.ApprovalDecision{Approval: a.ID, Digest: a.Digest, Approve: yes})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
	}
	t.Fatalf("turn %s asks for no approval: it is %s", id, w.Turn(id).State)
	return session.Approval{}
}

func TestPersonalTurn(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(
			et.Calls(et.Call{ID: "1", Alias: "files_read", Arguments: `{"path":"home/todo.txt"}`}, et.Call{ID: "2", Alias: "forecast", Arguments: `{"city":"Oslo"}`}),
			et.Calls(et.Call{ID: "3", Alias: "files_write", Arguments: `{"path":"home/plan.txt","content":"go out"}`}),
			et.Text("done"),
		))
		s := w.Session("assistant")
		turn := w.Submit(s, "plan my day")
		w.Settle()
		wantState(t, w, turn.ID, session.WaitingApproval, "")
		if _, exists := r.Files["home/plan.txt"]; exists {
			t.Fatal("the file was written before it was approved")
		}
		approve(t, w, turn.ID, true)
		w.Settle()
		got := wantState(t, w, turn.ID, session.Completed, "")
		if got.Answer != "done" || r.Files["home/plan.txt"] != "go out" {
			t.Errorf("answer %q, files %v", got.Answer, r.Files)
		}
		if got.InputTokens != 21 || got.CostMicroUSD != 30 {
			t.Errorf("usage %+v", got)
		}
		requests := w.Broker.Requests()
		if len(requests) != 3 {
			t.Fatalf("%d model calls", len(requests))
		}
		var results []string
		for _, m := range requests[2].Messages {
			for _, b := range m.Blocks {
				if res := b.GetToolResult(); res != nil {
					results = append(results, res.CallId+" "+res.Status.String()+" "+res.Text)
				}
			}
		}
		want := []string{
			`1 RESULT_STATUS_OK {"content":"buy milk","digest":"sha256:` + digestOf("buy milk") + `"}`,
			`2 RESULT_STATUS_OK sunny`,
			`3 RESULT_STATUS_OK {"digest":"sha256:` + digestOf("go out") + `"}`,
		}
		if !slices.Equal(results, want) {
			t.Errorf("results\n%q\nwant\n%q", results, want)
		}
	})
}
