// Package loop is the model/tool loop, and the only one: the engine drives it
// for a turn that runs in the server, the worker's native adapter for one that
// runs on a runner. It is pure: a state and an input give a state and commands.
//
// It guarantees that the calls of one model response run in order, that each
// gets exactly one result before the next model call, that a limit ends the
// turn with its name, and that only the instructions of the snapshot are system
// text. At most one command is outstanding. It refuses I/O, clocks and
// randomness.
//
// A driver calls New, steps with Begin, carries out the one command it gets,
// and steps with the answer until Finish. What each step appended to the
// conversation is Added(before, after). An input that answers no outstanding
// command changes nothing, so a late or repeated answer is harmless.
package loop

import (
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"

	"google.golang.org/protobuf/proto"
)

// Input is what happened.
type Input interface{ input() }

type (
	// Begin starts a new state, or resumes one: it repeats the command that the
	// state waits for.
	Begin struct{}
	// ModelAnswered is a whole answer.
	ModelAnswered struct{ Done *runtimev1.ModelDone }
	// ModelFailed is an answer that never came. Retryable codes are tried again
	// within Limits, others end the turn.
	ModelFailed struct{ Err *protocol.Error }
	// ToolAnswered is the one result of the call in flight.
	ToolAnswered struct{ Result *runtimev1.ToolResult }
	// Cancel ends the turn; calls without a result get SKIPPED. Of a call in
	// flight the driver says what is known in InFlight; without it, the call is
	// UNKNOWN unless its tool only reads (INV-5).
	Cancel struct{ InFlight *runtimev1.ToolResult }
	// Expire ends the turn by its wall time, as Cancel does.
	Expire struct{ InFlight *runtimev1.ToolResult }
)

func (Begin) input()         {}
func (ModelAnswered) input() {}
func (ModelFailed) input()   {}
func (ToolAnswered) input()  {}
func (Cancel) input()        {}
func (Expire) input()        {}

// Command is what the driver must do next.
type Command interface{ command() }

type (
	// CallModel asks for the next answer, not before After has passed.
	CallModel struct {
		Request *runtimev1.ModelRequest
		After   time.Duration
	}
	// CallTool runs one call of the accepted set; its arguments are valid and
	// canonical (RFC 8785).
	CallTool struct {
		Call *runtimev1.ToolCall
		Tool *runtimev1.Tool
		// Interrupted: an earlier attempt may have begun it. Where the tool has an
		// inspector, that looks first: see Inspected.
		Interrupted bool
	}
	// Finish ends the loop.
	Finish struct{ Outcome *runtimev1.Outcome }
)

func (CallModel) command() {}
func (CallTool) command()  {}
func (Finish) command()    {}

// New is the first state of a turn, or the state in which an earlier attempt of
// the turn left off. Of a resumed state only what happened is taken: model,
// tools, limits, instructions, conversation and prompt are those of the spec, for
// another machine wrote the checkpoint. The limits count on from what the turn is
// known to have used. INV-19.
func New(s *runtimev1.Spec) *runtimev1.LoopState {
	st := &runtimev1.LoopState{}
	first := firstMessages(s)
	if s.Resume != nil {
		st = proto.CloneOf(s.Resume)
		first = append(first, plain(st.Messages[min(len(first), len(st.Messages)):])...)
	}
	st.Messages = first
	st.Usage, st.ModelCalls, st.Settled = greater(st.Usage, s.GetSettled().GetUsage()), max(st.ModelCalls, s.GetSettled().GetModelCalls()), nil
	st.Model, st.Tools, st.Limits, st.MaxOutputTokens = s.Model, s.Tools, s.Limits, s.MaxOutputTokens
	return st
}

// firstMessages are the instructions as the only system text, and the
// conversation.
func firstMessages(s *runtimev1.Spec) []*runtimev1.Message {
	if s.Instructions == "" {
		return plain(s.Messages)
	}
	return append([]*runtimev1.Message{textMessage(runtimev1.Role_ROLE_SYSTEM, s.Instructions)}, plain(s.Messages)...)
}

// plain takes the system role from messages, and leaves each role only what it
// may carry: text that was read, fetched or executed cannot become an
// instruction.
func plain(messages []*runtimev1.Message) (out []*runtimev1.Message) {
	for _, m := range messages {
		role := m.Role
		if role != runtimev1.Role_ROLE_ASSISTANT && role != runtimev1.Role_ROLE_TOOL {
			role = runtimev1.Role_ROLE_USER
		}
		clean := &runtimev1.Message{Role: role}
		for _, b := range m.Blocks {
			if carries(role, b) {
				clean.Blocks = append(clean.Blocks, b)
			}
		}
		if len(clean.Blocks) > 0 {
			out = append(out, clean)
		}
	}
	return out
}

// carries says which blocks a role may hold.
func carries(role runtimev1.Role, b *runtimev1.Block) bool {
	switch k := b.Kind.(type) {
	case *runtimev1.Block_Text:
		return role != runtimev1.Role_ROLE_TOOL && k.Text != ""
	case *runtimev1.Block_ToolCall:
		return role == runtimev1.Role_ROLE_ASSISTANT
	case *runtimev1.Block_ToolResult:
		return role == runtimev1.Role_ROLE_TOOL
	}
	return false
}

// Step is the whole loop. It does not change s; the returned state replaces it.
// Messages are shared between states and never changed once appended.
func Step(s *runtimev1.LoopState, in Input) (*runtimev1.LoopState, []Command) {
	t := turn{next(s)}
	switch in := in.(type) {
	case Begin:
		return t.begin()
	case ModelAnswered:
		if t.Phase == runtimev1.Phase_PHASE_MODEL && in.Done != nil {
			return t.answered(in.Done)
		}
	case ModelFailed:
		if t.Phase == runtimev1.Phase_PHASE_MODEL && in.Err != nil {
			return t.modelFailed(in.Err)
		}
	case ToolAnswered:
		if t.Phase == runtimev1.Phase_PHASE_TOOL && in.Result.GetCallId() == t.Pending[0].Id {
			return t.toolAnswered(in.Result)
		}
	case Cancel:
		if t.Phase != runtimev1.Phase_PHASE_DONE {
			t.settleInFlight(in.InFlight)
			return t.end(runtimev1.OutcomeKind_OUTCOME_KIND_CANCELLED, ReasonCancelled, "The turn was cancelled.")
		}
	case Expire:
		if t.Phase != runtimev1.Phase_PHASE_DONE {
			t.settleInFlight(in.InFlight)
			return t.fail(LimitWall, "The turn ran longer than its limit of "+
				(time.Duration(t.Limits.GetMaxWallMs())*time.Millisecond).String()+".")
		}
	}
	return s, nil
}

// Added are the messages that a step appended: an answer, results, or a
// correction.
func Added(before, after *runtimev1.LoopState) []*runtimev1.Message {
	if len(after.Messages) <= len(before.Messages) {
		return nil
	}
	return after.Messages[len(before.Messages):]
}

// turn is a state under change.
type turn struct{ *runtimev1.LoopState }

// next is a copy of s that may be appended to: the elements are shared, the
// slices are not.
func next(s *runtimev1.LoopState) *runtimev1.LoopState {
	usage := &runtimev1.Usage{}
	if s.Usage != nil {
		usage = proto.CloneOf(s.Usage)
	}
	return &runtimev1.LoopState{
		Model: s.Model, Messages: slices.Clip(s.Messages), Tools: s.Tools, Limits: s.Limits,
		MaxOutputTokens: s.MaxOutputTokens, Phase: s.Phase, Pending: slices.Clip(s.Pending),
		ModelCalls: s.ModelCalls, ToolCalls: s.ToolCalls, Corrections: s.Corrections,
		Usage: usage, ModelRetries: s.ModelRetries, Outcome: s.Outcome, Settled: s.Settled,
	}
}

// begin starts, or repeats the outstanding command.
func (t turn) begin() (*runtimev1.LoopState, []Command) {
	switch t.Phase {
	case runtimev1.Phase_PHASE_MODEL:
		return t.LoopState, []Command{t.request()}
	case runtimev1.Phase_PHASE_TOOL:
		return t.repeatCall()
	case runtimev1.Phase_PHASE_DONE:
		return t.LoopState, []Command{Finish{Outcome: t.Outcome}}
	}
	if problem := t.unfit(); problem != "" {
		return t.fail(ReasonInvalid, problem)
	}
	return t.callModel()
}

// unfit says why a turn cannot start. A limit of zero is refused: it would mean
// either nothing or everything.
func (t turn) unfit() string {
	l := t.Limits
	for _, limit := range []struct {
		name  string
		value int64
	}{
		{LimitModelCalls, int64(l.GetMaxModelCalls())}, {LimitToolCalls, int64(l.GetMaxToolCalls())},
		{LimitCorrections, int64(l.GetMaxCorrections())}, {LimitTokens, l.GetMaxTokens()},
		{LimitCost, l.GetMaxCostMicroUsd()}, {LimitWall, l.GetMaxWallMs()},
		{"max_result_bytes", int64(l.GetMaxResultBytes())},
	} {
		if limit.value <= 0 {
			return "The turn has no " + limit.name + ": every limit must be above zero."
		}
	}
	seen := map[string]bool{}
	for _, tool := range t.Tools {
		if seen[tool.Alias] {
			return "Two tools have the alias " + tool.Alias + "."
		}
		seen[tool.Alias] = true
	}
	return ""
}

func (t turn) append(m *runtimev1.Message) { t.Messages = append(t.Messages, m) }

func textMessage(role runtimev1.Role, text string) *runtimev1.Message {
	return &runtimev1.Message{Role: role, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: text}}}}
}
