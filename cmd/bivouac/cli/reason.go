package cli

import "bivouac/edge/protocol"

// reasonCode gives the reasons for which turns end, where they are no error codes
// themselves, the code whose exit code tells a script what to do.
var reasonCode = map[string]protocol.Code{
	// the model, or how it is set up
	"model_auth":        protocol.CodeFailedPrecondition,
	"model_refused":     protocol.CodeFailedPrecondition,
	"model_not_found":   protocol.CodeFailedPrecondition,
	"model_answer":      protocol.CodeDataLoss,
	"model_failed":      protocol.CodeUnavailable,
	"model_unavailable": protocol.CodeUnavailable,
	// limits of the agent
	"max_model_calls":   protocol.CodeBudgetExhausted,
	"max_tool_calls":    protocol.CodeBudgetExhausted,
	"max_corrections":   protocol.CodeBudgetExhausted,
	"max_tokens":        protocol.CodeBudgetExhausted,
	"max_cost":          protocol.CodeBudgetExhausted,
	"max_output_tokens": protocol.CodeBudgetExhausted,
	"max_wall":          protocol.CodeDeadlineExceeded,
	// nothing took it, or what took it is gone
	"queue_deadline": protocol.CodeDeadlineExceeded,
	"not_placed":     protocol.CodeDeadlineExceeded,
	"interrupted":    protocol.CodeUnavailable,
	// somebody said no, or took something back
	"approval_denied":    protocol.CodePermissionDenied,
	"restored":           protocol.CodeOutcomeUnknown,
	"owner_denied":       protocol.CodePermissionDenied,
	"authority_lost":     protocol.CodePermissionDenied,
	"grant_revoked":      protocol.CodePermissionDenied,
	"principal_disabled": protocol.CodePermissionDenied,
	"session_revoked":    protocol.CodePermissionDenied,
	"instance_recreated": protocol.CodePermissionDenied,
	"runner_revoked":     protocol.CodePermissionDenied,
	"session_closed":     protocol.CodeFailedPrecondition,
	"session_ended":      protocol.CodeCancelled,
	"session_expired":    protocol.CodeFailedPrecondition,
	"invalid_agent":      protocol.CodeFailedPrecondition,
}

// codeOfReason is the code of a turn that failed for a reason; internal for one
// that this client does not know.
func codeOfReason(reason string) protocol.Code {
	if code, ok := reasonCode[reason]; ok {
		return code
	}
	if _, ok := protocol.Codes[protocol.Code(reason)]; ok {
		return protocol.Code(reason)
	}
	return protocol.CodeInternal
}
