package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/execution"
	"bivouac/server/session"
)

// courier is the assistant with a tool that can be looked up.
func courier() string {
	const track = `
  tool "track" {
    kind        = "http"
    description = "Sends a parcel."
    destination = "parcels"
    method      = "POST"
    path        = "/parcels"
    body        = ["id"]
    timeout     = "10s"
    effect      = "R1"
    recovery    = "inspectable"
    lookup {
      path     = "/parcels/{id}?key={idempotency_key}"
      contains = "parcel {id}"
    }
    input = { type = "object", required = ["id"], properties = { id = { type = "string" } } }
  }
}
`
	src := strings.TrimSpace(et.Assistant)
	return strings.Replace(src[:strings.LastIndex(src, "}")], `"assistant"`, `"courier"`, 1) + track
}

// calls of each class, through the broker and on the machine.
var (
	throughBroker = map[execution.Class]et.Call{
		execution.Reads:       {ID: "c", Alias: "forecast", Arguments: `{"city":"Oslo"}`},
		execution.Idempotent:  {ID: "c", Alias: "order", Arguments: `{"item":"tea"}`},
		execution.Inspectable: {ID: "c", Alias: "track", Arguments: `{"id":"p1"}`},
		execution.Opaque:      {ID: "c", Alias: "note", Arguments: `{"text":"x"}`},
	}
	onTheMachine = map[execution.Class]et.Call{
		execution.Reads:       {ID: "c", Alias: "files_read", Arguments: `{"path":"home/todo.txt"}`},
		execution.Inspectable: write,
	}
)

// scene is one action that was left at a point.
type scene struct {
	*et.World
	t    *testing.T
	r    *et.Runner
	cell execution.Cell
	turn protocol.TurnID
	ref  string
}

// action of the scene: of a write the write itself, once it is approved.
func (s *scene) action() session.Action {
	s.t.Helper()
	for _, a := range s.Actions(s.turn) {
		if a.Tool == s.ref && a.State != session.Superseded {
			return a
		}
	}
	return session.Action{}
}

func (s *scene) is(state session.ActionState) func() bool {
	return func() bool { return s.action().State == state }
}

// Every cell of the recovery table, played: an action is left at the point, with
// the knower who has that to say, and the engine does what the table says. INV-5.
func TestRecoveryTable(t *testing.T) {
	for _, cell := range execution.Cells() {
		t.Run(strings.ReplaceAll(cell.String(), " ", "_"), func(t *testing.T) {
			want, _ := execution.Recover(cell)
			inWorld(t, func(w *et.World, r *et.Runner) {
				s := begin(t, w, r, cell)
				got, why := s.play()
				if got != want {
					t.Errorf("the engine did %q, the table says %q: %s", got, want, why)
				}
			})
		})
	}
}

// begin submits the turn whose model makes the call of the cell's class.
func begin(t *testing.T, w *et.World, r *et.Runner, cell execution.Cell) *scene {
	t.Helper()
	if _, err := w.Engine.ApplyAgent(ctx(), w.Me(), engine.AgentSource{Filename: "c.hcl", Source: []byte(courier())}); err != nil {
		t.Fatal(err)
	}
	w.Broker.Serve("http:track", reply("parcel p1"))
	call := throughBroker[cell.Class]
	s := &scene{World: w, t: t, r: r, cell: cell, ref: "http:" + call.Alias}
	if s.onMachine() {
		call = onTheMachine[cell.Class]
		s.ref = strings.Replace(call.Alias, "_", ".", 1)
	}
	w.Broker.Say(et.Script(et.Calls(call), et.Text("done")))
	s.turn = w.Submit(w.Session("courier"), "do it").ID
	return s
}

func (s *scene) onMachine() bool {
	switch s.cell.Knower {
	case execution.MachineAway, execution.MachineResult, execution.MachineHolds, execution.MachineLost:
		return true
	}
	return false
}

// play leaves the action where the cell says and reports what the engine did.
func (s *scene) play() (execution.Remedy, string) {
	s.t.Helper()
	switch {
	case s.onMachine():
		return s.playMachine()
	case s.cell.Point == execution.AtIntent:
		s.Until("the intent", s.is(session.Intended))
		s.Restart()
		return s.observe(5 * time.Second)
	case s.cell.Knower == execution.Here:
		s.Until("the sending", func() bool { return s.is(session.Dispatched)() && len(s.Ops.Keys()) > 0 })
		return s.reconcileOnce()
	}
	s.Until("the sending", s.is(session.Dispatched))
	s.prepare()
	if s.cell.Point == execution.AtEnded {
		s.Until("the doubt", s.is(session.Reconciling))
		s.cancel()
	}
	if s.cell.Point == execution.AtOverdue {
		return s.observe(session.ReconcileWithin + 10*time.Second)
	}
	return s.observe(25 * time.Second)
}

// prepare makes the cell's knower know what it knows, of a call that is about to
// leave.
func (s *scene) prepare() {
	const many = 1000
	looks := func(status int32, body string) {
		s.Broker.Look(s.ref, func(*brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
			return &brokerv1.InvokeResponse{HttpStatus: status, ContentType: "text/plain", Body: []byte(body)}, nil
		})
	}
	switch s.cell.Knower {
	case execution.Nobody:
		s.Restart() // with the call, before it left
		s.Broker.SetDown(true)
	case execution.LogAbsent:
		s.Broker.Lose(s.ref, many, et.Unlogged)
	case execution.LogOpen:
		s.Broker.Lose(s.ref, many, et.Unanswered)
	case execution.LogAnswered:
		s.Broker.Lose(s.ref, many, et.Untold)
	case execution.LogLost:
		s.Broker.Certain()
		s.Broker.Lose(s.ref, many, et.Unanswered)
		looks(503, "")
	case execution.SeenDone:
		s.Broker.Certain()
		s.Broker.Lose(s.ref, many, et.Unanswered)
		looks(200, "here is parcel p1")
	case execution.SeenAbsent:
		s.Broker.Certain()
		s.Broker.Lose(s.ref, many, et.Unsent)
		looks(200, "here is parcel p2")
	case execution.SeenNothing:
		s.Broker.Certain()
		s.Broker.Lose(s.ref, many, et.Unsent)
		looks(500, "parcel p1")
	}
}

func (s *scene) cancel() {
	s.t.Helper()
	if _, err := s.Engine.CancelTurn(ctx(), s.Me(), s.turn); err != nil {
		s.t.Fatal(err)
	}
}

// playMachine leaves the action with its machine.
func (s *scene) playMachine() (execution.Remedy, string) {
	s.t.Helper()
	if s.cell.Knower == execution.MachineLost {
		do := func(d *runnerv1.DeviceWork) *runnerv1.Result {
			return &runnerv1.Result{Status: "unknown", Code: string(protocol.CodeOutcomeUnknown), Message: "it fell in between"}
		}
		defer func() { s.r.Do = nil }()
		s.Until("the wish", func() bool { return s.action().Tool == s.ref })
		s.r.Do = do
	}
	s.Until("the wish", func() bool { return s.action().Tool == s.ref })
	if s.cell.Knower == execution.MachineHolds {
		return s.playHeld()
	}
	s.r.Reports, s.r.Renews = false, false
	s.Until("the sending", func() bool {
		approvePending(s.t, s.World, s.Turn(s.turn))
		return s.is(session.Dispatched)() && s.held()
	})
	if s.cell.Point == execution.AtEnded {
		s.cancel()
	}
	s.World.Sleep(20 * time.Second) // its lease lapses
	if a := s.action(); a.State != session.Reconciling {
		s.t.Fatalf("the machine is away, and the action is %s", a.State)
	}
	s.r.Reports = s.cell.Knower != execution.MachineAway
	return s.observe(5 * time.Second)
}

// playHeld leaves the action with its machine, whose owner is asked and says nothing,
// until it is away for longer than its retention.
func (s *scene) playHeld() (execution.Remedy, string) {
	s.t.Helper()
	s.r.Keyed = true
	s.Until("the question", func() bool {
		approvePending(s.t, s.World, s.Turn(s.turn))
		return s.is(session.Dispatched)() && s.held()
	})
	s.World.Sleep(20 * time.Second)
	s.r.Renews = false
	s.World.Sleep(20 * time.Second) // its lease lapses
	if a := s.action(); a.State != session.Dispatched {
		s.t.Fatalf("the machine is away and had not begun, and the action is %s", a.State)
	}
	return s.observe(15 * time.Minute)
}

// held reports that the machine has claimed the action.
func (s *scene) held() bool { return s.r.Holds(s.action().Attempt) != nil }

// observe lets time pass and tells the remedy from what happened.
func (s *scene) observe(d time.Duration) (execution.Remedy, string) {
	s.t.Helper()
	before := s.Broker.Asked()
	if s.cell.Point == execution.AtSent && s.cell.Knower != execution.Nobody && !s.onMachine() {
		before.Sent++ // the call itself, which has not left yet
	}
	s.r.Connect()
	s.r.Renews = !s.onMachine()
	s.World.Sleep(d)
	a, after := s.action(), s.Broker.Asked()
	why := fmt.Sprintf("%s is %s, %s; asked %+v, then %+v", a.Tool, a.State, a.Evidence, before, after)
	switch {
	case a.State == session.Succeeded && s.cell.Point == execution.AtIntent && after.Sent == before.Sent+1:
		return execution.Dispatch, why
	case a.State == session.Succeeded:
		return execution.Accept, why
	case a.State == session.ActionFailed && a.Code == string(protocol.CodeUnavailable):
		return execution.Refute, why
	case a.State == session.ActionUnknown:
		return execution.GiveUp, why
	case a.State.Terminal():
		return "", why
	case after.Looked > before.Looked:
		return execution.Inspect, why
	case after.Sent > before.Sent:
		return execution.Resend, why
	case after.Log > before.Log:
		return execution.Ask, why
	}
	return execution.Await, why
}

// reconcileOnce runs the one tick, while the call is under way.
func (s *scene) reconcileOnce() (execution.Remedy, string) {
	s.t.Helper()
	before, state := s.Broker.Asked(), s.action().State
	for _, tick := range s.Engine.Ticks() {
		if tick.Name != "reconcile" {
			continue
		}
		if _, err := tick.Do(context.Background()); err != nil {
			s.t.Fatal(err)
		}
	}
	if after := s.Broker.Asked(); after != before || s.action().State != state {
		return "", fmt.Sprintf("the action is %s, asked %+v", s.action().State, after)
	}
	return execution.Await, ""
}
