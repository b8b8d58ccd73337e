package loop

import (
	"fmt"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"

	"google.golang.org/protobuf/proto"
)

// Names of limits: a turn that a limit ends has it as its reason.
const (
	LimitModelCalls  = "max_model_calls"
	LimitToolCalls   = "max_tool_calls"
	LimitCorrections = "max_corrections"
	LimitTokens      = "max_tokens"
	LimitCost        = "max_cost"
	LimitWall        = "max_wall"
)

// Other reasons of an Outcome. They are stable text.
const (
	ReasonCancelled       = "cancelled"
	ReasonInvalid         = "invalid_argument"
	ReasonMaxOutputTokens = "max_output_tokens"
	ReasonOutcomeUnknown  = "outcome_unknown"
	ReasonModelAuth       = "model_auth"
	ReasonModelRefused    = "model_refused"
	ReasonModelNotFound   = "model_not_found"
	ReasonModelAnswer     = "model_answer"
	ReasonModelFailed     = "model_failed"
	ReasonUnavailable     = "model_unavailable"
	ReasonBudget          = "budget_exhausted"
	ReasonPolicy          = "policy_denied"
	ReasonAuthority       = "authority_lost"
	ReasonGrant           = "grant_revoked"
)

// reasons of model errors that end a turn at once.
var reasons = map[protocol.Code]string{
	protocol.CodeInvalidArgument:    ReasonModelRefused,
	protocol.CodeFailedPrecondition: ReasonModelRefused,
	protocol.CodeUnauthenticated:    ReasonModelAuth,
	protocol.CodePermissionDenied:   ReasonModelAuth,
	protocol.CodePolicyDenied:       ReasonPolicy,
	protocol.CodeNotFound:           ReasonModelNotFound,
	protocol.CodeBudgetExhausted:    ReasonBudget,
	protocol.CodeStaleFence:         ReasonAuthority,
	protocol.CodeLeaseExpired:       ReasonAuthority,
	protocol.CodeDataLoss:           ReasonModelAnswer,
	protocol.CodeDeadlineExceeded:   ReasonUnavailable,
}

// complete ends the turn with the model's text.
func (t turn) complete(text string) (*runtimev1.LoopState, []Command) {
	return t.finish(&runtimev1.Outcome{Kind: runtimev1.OutcomeKind_OUTCOME_KIND_COMPLETED, Text: text})
}

// fail ends the turn with a stable reason and a sentence for people.
func (t turn) fail(reason, message string) (*runtimev1.LoopState, []Command) {
	return t.end(runtimev1.OutcomeKind_OUTCOME_KIND_FAILED, reason, message)
}

func (t turn) end(kind runtimev1.OutcomeKind, reason, message string) (*runtimev1.LoopState, []Command) {
	return t.finish(&runtimev1.Outcome{Kind: kind, Reason: reason, Message: message})
}

// finish gives every call without a result its one result, and ends.
func (t turn) finish(o *runtimev1.Outcome) (*runtimev1.LoopState, []Command) {
	for _, call := range t.Pending {
		t.append(resultMessage(&runtimev1.ToolResult{
			CallId: call.Id, Status: runtimev1.ResultStatus_RESULT_STATUS_SKIPPED,
			Text: textSkipped, Code: string(protocol.CodeCancelled),
		}))
	}
	t.Pending = nil
	o.Usage = greater(t.Usage, t.Settled.GetUsage())
	t.Phase, t.Outcome = runtimev1.Phase_PHASE_DONE, o
	return t.LoopState, []Command{Finish{Outcome: o}}
}

// spent names a limit that forbids another model call, or is empty. It is asked
// as soon as an answer needs one: nothing is executed for an answer that the
// model could never react to.
func (t turn) spent() (limit, message string) {
	l, used := t.Limits, greater(t.Usage, t.Settled.GetUsage())
	switch {
	case max(t.ModelCalls, t.Settled.GetModelCalls()) >= l.GetMaxModelCalls():
		return LimitModelCalls, fmt.Sprintf("The turn used all of its %d model calls.", l.GetMaxModelCalls())
	case used.InputTokens+used.OutputTokens >= l.GetMaxTokens():
		return LimitTokens, fmt.Sprintf("The turn used %d of at most %d tokens.",
			used.InputTokens+used.OutputTokens, l.GetMaxTokens())
	case used.CostMicroUsd >= l.GetMaxCostMicroUsd():
		return LimitCost, fmt.Sprintf("The turn cost $%.6f of at most $%.6f.",
			float64(used.CostMicroUsd)/1e6, float64(l.GetMaxCostMicroUsd())/1e6)
	}
	return "", ""
}

// greater of each count; nil for nothing used.
func greater(a, b *runtimev1.Usage) *runtimev1.Usage {
	switch {
	case b == nil:
		return a
	case a == nil:
		return proto.CloneOf(b)
	}
	return &runtimev1.Usage{
		InputTokens: max(a.InputTokens, b.InputTokens), OutputTokens: max(a.OutputTokens, b.OutputTokens),
		CostMicroUsd:    max(a.CostMicroUsd, b.CostMicroUsd),
		CacheReadTokens: max(a.CacheReadTokens, b.CacheReadTokens), CacheWriteTokens: max(a.CacheWriteTokens, b.CacheWriteTokens),
	}
}

// correct counts something that the model must do again, and reports that the
// turn has no correction left.
func (t turn) correct() bool {
	t.Corrections++
	return t.Corrections > t.Limits.GetMaxCorrections()
}

func (t turn) tooManyCorrections() (*runtimev1.LoopState, []Command) {
	return t.fail(LimitCorrections, fmt.Sprintf(
		"The model had to be corrected more than %d times.", t.Limits.GetMaxCorrections()))
}
