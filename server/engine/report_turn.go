package engine

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/redact"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/loop/schema"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/execution"
	"bivouac/server/session"
)

// loopEvent turns what a worker's loop did into events of the session. A worker
// is not trusted: text is redacted as everywhere, and of a tool that the engine
// dispatches only the engine's own word counts.
func (w *turnTx) loopEvent(a execution.Attempt, encoded []byte) error {
	ev := &runtimev1.LoopEvent{}
	if err := proto.Unmarshal(encoded, ev); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "loop event of attempt %s cannot be read: %w", a.ID, err)
	}
	switch k := ev.Kind.(type) {
	case *runtimev1.LoopEvent_ModelCallStarted:
		w.event(session.Event{Type: session.ModelCalled, Attempt: a.ID, Data: map[string]string{
			"number": strconv.Itoa(int(k.ModelCallStarted.GetNumber()))}})
	case *runtimev1.LoopEvent_ModelCallFailed:
		return w.workerModelFailed(a, k.ModelCallFailed)
	case *runtimev1.LoopEvent_Message:
		return w.workerMessage(a, k.Message)
	case *runtimev1.LoopEvent_ToolStarted:
		return w.workerToolStarted(a, k.ToolStarted)
	case *runtimev1.LoopEvent_ToolFinished:
		return w.workerToolFinished(a, k.ToolFinished)
	}
	return nil
}

// workerModelFailed records a try that failed on a machine. It says which, since only
// that one may lack the way to the broker.
func (w *turnTx) workerModelFailed(a execution.Attempt, f *runtimev1.ModelCallFailed) error {
	code := protocol.Code(f.GetCode())
	if _, known := protocol.Codes[code]; !known {
		code = protocol.CodeUnavailable // a worker's own word
	}
	data := map[string]string{"code": string(code), "runner": a.Runner.String()}
	if f.GetUnreachable() {
		data[session.DataUnreachable] = "broker"
	}
	w.event(session.Event{Type: session.ModelFailed, Attempt: a.ID, Data: data})
	return w.noteWay(a.Runner, !f.GetUnreachable())
}

// noteWay keeps whether the newest model call of a machine reached the broker, for its
// owner, who may look at the machine long after the turn.
func (w *turnTx) noteWay(id protocol.RunnerID, reached bool) error {
	r, err := w.tx.Runner(id)
	if err != nil || r.Facts.NoBroker.IsZero() == reached {
		return err
	}
	if r.Facts.NoBroker = w.tx.Now; reached {
		r.Facts.NoBroker = time.Time{}
	}
	return w.tx.SaveRunner(r, r.State)
}

func (w *turnTx) workerMessage(a execution.Attempt, m *runtimev1.Message) error {
	if m.GetRole() != runtimev1.Role_ROLE_ASSISTANT {
		return nil // results come as such, and the prompt is known
	}
	clean := proto.CloneOf(m)
	for _, b := range clean.Blocks {
		if text, ok := b.Kind.(*runtimev1.Block_Text); ok {
			text.Text, _ = redact.Text(text.Text)
		}
	}
	payload, err := session.EncodePayload(clean)
	if err != nil {
		return err
	}
	w.event(session.Event{Type: session.ModelAnswered, Attempt: a.ID, Payload: payload})
	return w.noteWay(a.Runner, true)
}

func (w *turnTx) workerToolStarted(a execution.Attempt, c *runtimev1.ToolCall) error {
	tool, err := w.tool(c.GetAlias())
	if err != nil || tool.Placement != runtimev1.Placement_PLACEMENT_SANDBOX {
		return nil // its intent is the engine's to record
	}
	data := map[string]string{session.DataCallID: c.Id, session.DataAlias: c.Alias, "tool": tool.Ref}
	shown, _ := redact.Text(c.Arguments)
	w.event(session.Event{Type: session.ToolRequested, Attempt: a.ID, Data: data, Payload: shown})
	w.event(session.Event{Type: session.ToolDispatched, Attempt: a.ID, Data: map[string]string{
		session.DataCallID: c.Id, session.DataAlias: c.Alias, "tool": tool.Ref}})
	return nil
}

func (w *turnTx) workerToolFinished(a execution.Attempt, r *runtimev1.ToolResult) error {
	engines, err := w.dispatchedHere(r.GetCallId())
	if err != nil || engines {
		return err
	}
	if known, err := w.answered(); err != nil || !known {
		return err
	}
	clean, err := w.presentable(r)
	if err != nil {
		return err
	}
	w.refusedTool(loop.WhyRefused(r))
	payload, err := session.EncodePayload(clean)
	if err != nil {
		return err
	}
	w.event(session.Event{Type: session.ToolFinished, Attempt: a.ID, Payload: payload, Data: map[string]string{
		session.DataCallID: r.CallId, "status": statusWord(r.Status), "code": r.Code}})
	return nil
}

// dispatchedHere reports a call that the engine took up, of the model's newest
// answer or still open: of those its own word counts, and the worker's does not.
// Call ids are unique within one answer only.
func (w *turnTx) dispatchedHere(callID string) (bool, error) {
	actions, err := w.tx.ActionsOfTurn(w.turn.ID)
	if err != nil {
		return false, err
	}
	for _, act := range actions {
		if act.CallID == callID && !act.State.Terminal() {
			return true, nil
		}
	}
	here := false
	_, err = w.sinceAnswer(func(e session.Event) {
		// what a worker asked for by itself is of its attempt
		here = here || e.Type == session.ToolRequested && e.Attempt == "" && e.Data[session.DataCallID] == callID
	})
	return here, err
}

// answered reports that the turn has an answer of the model to which a result can
// belong. A worker that reports results of no answer is not recorded: the
// conversation must stay one that can be rebuilt. INV-8.
func (w *turnTx) answered() (bool, error) {
	if w.turn.Placement != session.PlacementRunner {
		return true, nil
	}
	return w.sinceAnswer(func(session.Event) {})
}

// sinceAnswer shows the events that followed on the model's newest answer, newest
// first, and reports whether there is one.
func (w *turnTx) sinceAnswer(show func(session.Event)) (found bool, err error) {
	for _, e := range slices.Backward(w.events) {
		if e.Type == session.ModelAnswered {
			return true, nil
		}
		show(e)
	}
	for before := int64(0); ; {
		page, err := w.tx.NewestEventsOfTurn(w.turn.ID, before, 20)
		if err != nil || len(page) == 0 {
			return false, err
		}
		for _, e := range page {
			if e.Type == session.ModelAnswered {
				return true, nil
			}
			show(e.Event)
		}
		before = page[len(page)-1].Seq
	}
}

// toolRequested is a worker's wish for a tool that only the engine dispatches.
// The call is checked as if the loop had run here: accepted set, arguments,
// current authority. INV-10.
func (w *turnTx) toolRequested(a execution.Attempt, r *runnerv1.ToolRequested) error {
	call := &runtimev1.ToolCall{Id: r.CallId, Alias: r.Alias, Arguments: r.Arguments}
	w.canPark = r.CanPark
	tool, refusal := w.checkCall(call)
	if refusal == nil && w.turn.State != session.RunningModel {
		refusal = refuse(call.Id, statusDenied, protocol.CodeFailedPrecondition, "An earlier call is not answered yet.")
	}
	if refusal != nil {
		return w.mailAnswer(a.ID, refusal)
	}
	return w.callTool(call, tool)
}

// checkCall is strict: the alias is of the accepted set and not the sandbox's,
// and its arguments are canonical and fit the schema.
func (w *turnTx) checkCall(call *runtimev1.ToolCall) (*runtimev1.Tool, *runtimev1.ToolResult) {
	tool, err := w.tool(call.Alias)
	if err != nil || tool.Placement == runtimev1.Placement_PLACEMENT_SANDBOX {
		return nil, refuse(call.Id, statusDenied, protocol.CodePolicyDenied, "The server dispatches no tool of that name for this turn.")
	}
	if len(call.Arguments) > loop.MaxArgumentBytes {
		return nil, refuse(call.Id, statusFailed, protocol.CodeInvalidArgument, "The arguments are too large.")
	}
	b, err := canonical.Canonical([]byte(call.Arguments))
	if err == nil {
		var s *schema.Schema
		if s, err = schema.Compile(tool.InputSchema); err == nil {
			err = s.Validate(b)
		}
	}
	if err != nil {
		return nil, refuse(call.Id, statusFailed, protocol.CodeInvalidArgument, "The arguments of "+tool.Alias+" are not accepted: "+err.Error())
	}
	call.Arguments = string(b)
	return tool, nil
}

// answerWorker sends the one result of a call to the worker that waits for it.
func (w *turnTx) answerWorker(tool *runtimev1.Tool, r *runtimev1.ToolResult) error {
	if known, err := w.answered(); err != nil {
		return err
	} else if known {
		if err := w.recordResult(r); err != nil {
			return err
		}
	}
	w.settling = ""
	if r.Status == statusUnknown && tool.Effect >= runtimev1.Effect_EFFECT_OUTBOUND {
		return w.endUnknown("It is not known whether an effect outside this machine happened.")
	}
	if ev, moves := backToModel[w.turn.State]; moves {
		if err := w.step(ev); err != nil {
			return err
		}
	}
	return w.mailAnswer(w.turn.Attempt, r)
}

func (w *turnTx) mailAnswer(id protocol.AttemptID, r *runtimev1.ToolResult) error {
	a, err := w.tx.Attempt(id)
	if err != nil || a.State.Terminal() {
		return err // nobody waits any more
	}
	b, err := deterministic.Marshal(r)
	if err != nil {
		return err
	}
	return w.e.mail(w.tx, a.Runner, a.ID, &runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_ToolAnswer{
		ToolAnswer: &runnerv1.ToolAnswer{AttemptId: a.ID.String(), CallId: r.CallId, Result: b}}})
}

// checkpoint keeps transcript and files as the pair that they are.
func (w *turnTx) checkpoint(a execution.Attempt, c *runnerv1.Checkpoint) error {
	if a.ID != w.turn.Attempt || !w.turn.State.Active() {
		return nil
	}
	state := &runtimev1.LoopState{}
	if err := proto.Unmarshal(c.State, state); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "checkpoint of attempt %s cannot be read: %w", a.ID, err)
	}
	if err := w.ownPatch(c.PatchDigest); err != nil {
		return err
	}
	w.loop, w.turn.PatchDigest, w.dirty = state, c.PatchDigest, true
	w.spend(state.Usage)
	w.event(session.Event{Type: session.CheckpointTaken, Attempt: a.ID, Data: map[string]string{"patch_digest": c.PatchDigest}})
	return nil
}

// sandboxStates are what a supervisor reports of its sandboxes.
var sandboxStates = []string{"running", "frozen", "killed"}

// maxReason of a machine's words.
const maxReason = 300

// machineWords are a machine's own words as the record keeps them.
func machineWords(s string) string {
	clean, _ := redact.Text(s)
	return strings.ToValidUTF8(clean[:min(len(clean), maxReason)], "")
}

// sandboxMoved tells who follows the session that the turn's sandboxes stand still,
// run again, or are gone, by the machine's own clock: the server hears of it when the
// machine is back. The machine's words are payload, which can be erased; a state that
// is none stays evidence.
func (w *turnTx) sandboxMoved(a execution.Attempt, r *runnerv1.Record) error {
	moved := r.GetSandboxMoved()
	if a.SubjectKind != execution.SubjectTurn || !slices.Contains(sandboxStates, moved.GetState()) {
		return nil
	}
	w.event(session.Event{Type: session.SandboxMoved, Attempt: a.ID, Payload: machineWords(moved.GetReason()), Data: map[string]string{
		"runner": a.Runner.String(), "state": moved.GetState(), "machine_time": time.UnixMicro(r.AtUs).UTC().Format(time.RFC3339Nano)}})
	return nil
}

// ownPatch refuses a patch that was not uploaded for this session: a runner that
// knows the digest of something else must not get it as the turn's files.
func (w *turnTx) ownPatch(digest string) error {
	if digest == "" {
		return nil
	}
	_, err := w.tx.SessionArtifact(w.turn.Session, digest)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "patch %s was not uploaded for turn %s: put the blob first", digest, w.turn.ID)
	}
	return err
}

// turnResult ends the turn as its attempt ended, once, under the fence. INV-3.
func (w *turnTx) turnResult(a execution.Attempt, r *runnerv1.Result) error {
	if a.ID != w.turn.Attempt || !w.turn.State.Active() {
		return nil
	}
	if err := w.ownPatch(r.PatchDigest); err != nil {
		return err
	}
	if len(r.State) > 0 {
		state := &runtimev1.LoopState{}
		if err := proto.Unmarshal(r.State, state); err != nil {
			return protocol.Errorf(protocol.CodeInvalidArgument, "state of attempt %s cannot be read: %w", a.ID, err)
		}
		w.loop = state
	}
	w.turn.PatchDigest, w.dirty = r.PatchDigest, true
	o := &runtimev1.Outcome{}
	if err := proto.Unmarshal(r.Outcome, o); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "outcome of attempt %s cannot be read: %w", a.ID, err)
	}
	if o.Kind == runtimev1.OutcomeKind_OUTCOME_KIND_UNSPECIFIED {
		o = outcomeOf(r)
	}
	if o.Kind == runtimev1.OutcomeKind_OUTCOME_KIND_COMPLETED && w.turn.State != session.RunningModel {
		o = &runtimev1.Outcome{Kind: runtimev1.OutcomeKind_OUTCOME_KIND_FAILED, Reason: string(protocol.CodeFailedPrecondition),
			Message: "The worker finished while a call of it was not answered yet.", Usage: o.Usage}
	}
	if o.Kind == runtimev1.OutcomeKind_OUTCOME_KIND_FAILED {
		// The broker may know of a revocation before the work under it was ended here.
		if ended, err := w.endIfTaken(); ended || err != nil {
			return err
		}
	}
	if o.Kind == runtimev1.OutcomeKind_OUTCOME_KIND_COMPLETED {
		o.Message, _ = redact.Text(r.Message) // what the supervisor adds, such as what the patch leaves out
	}
	if o.Reason == loop.ReasonUnavailable {
		if r, err := w.tx.Runner(a.Runner); err == nil && r.Name != "" {
			o.Message = "On the machine " + strconv.Quote(r.Name) + ": " + o.Message // which only it may not reach
		}
	}
	o.Text, _ = redact.Text(o.Text)
	return w.finish(o)
}

// outcomeOf a result whose worker never finished its loop.
func outcomeOf(r *runnerv1.Result) *runtimev1.Outcome {
	o := &runtimev1.Outcome{Kind: runtimev1.OutcomeKind_OUTCOME_KIND_FAILED, Reason: r.Code, Message: r.Message}
	switch r.Status {
	case protocol.ResultCancelled:
		o.Kind, o.Reason = runtimev1.OutcomeKind_OUTCOME_KIND_CANCELLED, reasonCancelled
	case protocol.ResultDenied:
		o.Reason = reasonOwner
	case protocol.ResultUnknown:
		o.Kind = runtimev1.OutcomeKind_OUTCOME_KIND_UNKNOWN
	}
	if o.Reason == "" {
		o.Reason = string(protocol.CodeInternal)
	}
	return o
}
