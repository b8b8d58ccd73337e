package sim

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/fault"
	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
)

// worker is one supervisor and its worker: it drives the real loop, runs sandbox
// tools, asks the server for others, and journals all of it. It outlives its
// daemon, and not its machine.
type worker struct {
	party
	m       *machine
	e       *entry
	state   *runtimev1.LoopState
	used    map[string]int // ids of requested tools
	waiting string         // request that is not answered
	call    *runtimev1.ToolCall
	calls   int
	edits   int
	dirty   bool
	// its own copy of lease and terms, which go on without the daemon
	lease *lease.Lease
	terms *runnerv1.LeaseTerms
}

var deterministic = proto.MarshalOptions{Deterministic: true}

func encode(m proto.Message) []byte {
	b, err := deterministic.Marshal(m)
	if err != nil {
		panic("sim: " + err.Error())
	}
	return b
}

// startWorker begins a claimed turn.
func (m *machine) startWorker(e *entry) {
	w := &worker{party: party{s: m.s, name: "worker of " + m.name, up: true, on: &m.party}, m: m, e: e, used: map[string]int{}, lease: lease.NewLease(m.s.now)}
	e.worker = w
	w.lease.Renew(m.s.now(), e.lease.Authority(), e.lease.Retention())
	w.terms = e.terms
	m.s.turned(m, e, secondkey.Turn)
	spec := &runtimev1.Spec{}
	if err := proto.Unmarshal(e.work.GetTurn().GetSpec(), spec); err != nil {
		m.s.violate("the spec of %s cannot be read: %v", e.id, err)
		return
	}
	w.append(&runnerv1.Record{Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{Boundary: "process", Limits: "cgroup"}}}, true)
	w.after(m.s.between(0, 20*time.Millisecond), "worker begins "+e.id.String(), func() {
		if w.reach(fault.SuperviseBegun) {
			w.state = loop.New(spec)
			w.step(loop.Begin{})
		}
	})
}

// granted takes terms over from the daemon.
func (w *worker) granted(sent time.Duration, t *runnerv1.LeaseTerms) {
	w.lease.Renew(sent, time.Duration(t.AuthorityTtlMs)*time.Millisecond, time.Duration(t.RetentionMs)*time.Millisecond)
	if t.Capability != "" || w.terms == nil {
		w.terms = t
	}
}

func (w *worker) kill() { w.up = false }

// reach is a labelled step; the supervisor lives on when only the daemon dies.
func (w *worker) reach(l fault.Label) bool {
	w.m.reach(l)
	return w.up
}

// append journals a record; what is not durable at once is so soon.
func (w *worker) append(r *runnerv1.Record, durable bool) {
	w.e.append(w.m, r, durable)
	sync := func() {
		w.e.synced = len(w.e.record)
		if w.m.up {
			w.m.report()
		}
	}
	if durable {
		sync()
		return
	}
	w.after(25*time.Millisecond, "", sync)
}

func (w *worker) event(ev *runtimev1.LoopEvent) {
	w.append(&runnerv1.Record{Kind: &runnerv1.Record_LoopEvent{LoopEvent: encode(ev)}}, false)
}

// step makes one step of the loop, reports what it added, and carries the
// command out.
func (w *worker) step(in loop.Input) {
	before := w.state
	after, commands := loop.Step(before, in)
	w.state = after
	for _, msg := range loop.Added(before, after) {
		w.added(msg)
	}
	if _, ran := in.(loop.ToolAnswered); ran && w.dirty && after.Phase != runtimev1.Phase_PHASE_DONE {
		w.dirty = false
		w.append(&runnerv1.Record{Kind: &runnerv1.Record_Checkpoint{Checkpoint: &runnerv1.Checkpoint{
			State: encode(after), PatchDigest: w.patch()}}}, true)
	}
	for _, c := range commands {
		switch c := c.(type) {
		case loop.CallModel:
			w.after(c.After, "worker of "+w.m.name+" asks the model", func() { w.callModel(c.Request) })
		case loop.CallTool:
			w.callTool(c.Call, c.Tool)
		case loop.Finish:
			w.finish(c.Outcome)
		}
	}
}

func (w *worker) added(msg *runtimev1.Message) {
	if msg.Role != runtimev1.Role_ROLE_TOOL {
		w.event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_Message{Message: msg}})
		return
	}
	for _, b := range msg.Blocks {
		if r := b.GetToolResult(); r != nil {
			w.event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ToolFinished{ToolFinished: r}})
		}
	}
}

// patch is the digest of the workspace as it is; empty for no change.
func (w *worker) patch() string {
	if w.edits == 0 {
		return ""
	}
	return canonical.Digest([]byte(w.e.id.String() + " " + strconv.Itoa(w.edits)))
}

// callModel goes by the relay, under the capability of the newest terms.
func (w *worker) callModel(req *runtimev1.ModelRequest) {
	if !w.permitted(func() { w.callModel(req) }) {
		return
	}
	w.calls++
	w.event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ModelCallStarted{ModelCallStarted: &runtimev1.ModelCallStarted{Number: w.state.ModelCalls}}})
	id := w.e.id.String() + "/" + strconv.Itoa(w.calls)
	in := &brokerv1.CallModelRequest{Capability: w.terms.GetCapability(), CallId: id, Request: proto.CloneOf(req)}
	rpc(call{over: w.m.toModel, from: &w.party, to: &w.s.broker.party, name: "model " + id, timeout: longCall},
		func(answer func(*runtimev1.ModelDone, error)) { w.s.broker.callModel(w.m.thumb, in, answer) },
		func(done *runtimev1.ModelDone, err error) {
			if w.lease.Authority() <= 0 { // it was cut off: the call is made again
				w.callModel(req)
				return
			}
			if err != nil {
				w.step(loop.ModelFailed{Err: coded(err)})
				return
			}
			if w.reach(fault.WorkerModelAnswered) {
				w.step(loop.ModelAnswered{Done: done})
			}
		})
}

// permitted asks the lease before work: the supervisor needs no daemon for that.
// Without authority the work is held, and tried again, until its retention is
// over; on a machine that cannot freeze it ends. INV-20.
func (w *worker) permitted(again func()) bool {
	switch {
	case w.lease.Authority() > 0:
		return true
	case w.m.freezes && w.lease.Retention() > 0:
		w.after(500*time.Millisecond, "", again)
	default:
		w.s.note("%s ends: its lease is over", w.name)
		w.kill()
	}
	return false
}

func (w *worker) callTool(c *runtimev1.ToolCall, t *runtimev1.Tool) {
	if !w.permitted(func() { w.callTool(c, t) }) {
		return
	}
	w.event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ToolStarted{ToolStarted: c}})
	if t.Placement != runtimev1.Placement_PLACEMENT_SANDBOX {
		w.request(c)
		return
	}
	if !w.reach(fault.SuperviseExecStarted) {
		return
	}
	long := pick(w.s, 500*time.Millisecond, 500*time.Millisecond, 500*time.Millisecond, 20*time.Second)
	w.after(w.s.between(time.Millisecond, long), "exec "+c.Alias+" of "+w.e.id.String(), func() { w.exec(c) })
}

// exec is one tool call in the sandbox, which is frozen with everything else.
func (w *worker) exec(c *runtimev1.ToolCall) {
	if !w.permitted(func() { w.exec(c) }) {
		return
	}
	w.s.acts(w.m, w.e.id)
	w.edits++
	w.dirty = true
	if !w.reach(fault.SuperviseExecDone) {
		return
	}
	w.step(loop.ToolAnswered{Result: &runtimev1.ToolResult{CallId: c.Id, Status: runtimev1.ResultStatus_RESULT_STATUS_OK, Text: "ok"}})
}

// request asks the server for a tool; the wish is on the disk before the server
// can see it. INV-4.
func (w *worker) request(c *runtimev1.ToolCall) {
	id := c.Id
	if w.used[c.Id]++; w.used[c.Id] > 1 {
		id += "#" + strconv.Itoa(w.used[c.Id])
	}
	w.waiting, w.call = id, c
	w.append(&runnerv1.Record{Kind: &runnerv1.Record_ToolRequested{ToolRequested: &runnerv1.ToolRequested{
		CallId: id, Alias: c.Alias, Arguments: c.Arguments, CanPark: w.m.parks}}}, true)
}

// answered takes the server's answer of a requested tool, once.
func (w *worker) answered(a *runnerv1.ToolAnswer) {
	if !w.up || a.CallId != w.waiting {
		return
	}
	if a.Park {
		w.park()
		return
	}
	r := &runtimev1.ToolResult{}
	if err := proto.Unmarshal(a.Result, r); err != nil {
		w.s.violate("the answer of call %s cannot be read: %v", a.CallId, err)
		return
	}
	if !strings.HasPrefix(a.CallId, w.call.Id) {
		w.s.violate("the answer of call %s came for %s", a.CallId, w.call.Id)
	}
	w.waiting, w.dirty = "", true
	r.CallId = w.call.Id
	if w.reach(fault.WorkerToolDone) {
		w.step(loop.ToolAnswered{Result: r})
	}
}

// park ends the attempt while a person decides, with the cursor from which another
// goes on. INV-7.
func (w *worker) park() {
	w.e.result(w.m, &runnerv1.Result{Status: protocol.ResultParked, Code: string(protocol.CodeApprovalRequired),
		State: encode(w.state), PatchDigest: w.patch()})
	w.s.note("%s parks %s", w.name, w.e.id)
	w.up = false
	if w.m.up {
		w.m.report()
	}
}

var statusOf = map[runtimev1.OutcomeKind]string{
	runtimev1.OutcomeKind_OUTCOME_KIND_COMPLETED: "succeeded", runtimev1.OutcomeKind_OUTCOME_KIND_FAILED: "failed",
	runtimev1.OutcomeKind_OUTCOME_KIND_CANCELLED: "cancelled", runtimev1.OutcomeKind_OUTCOME_KIND_UNKNOWN: "unknown",
}

func (w *worker) finish(o *runtimev1.Outcome) {
	w.e.result(w.m, &runnerv1.Result{Status: statusOf[o.Kind], Code: o.Reason, Message: o.Message,
		Outcome: encode(o), State: encode(w.state), PatchDigest: w.patch()})
	w.s.note("%s finishes %s: %s", w.name, w.e.id, statusOf[o.Kind])
	w.up = false
	if w.m.up && w.m.reach(fault.SuperviseResult) {
		w.m.report()
	}
}
