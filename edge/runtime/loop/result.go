package loop

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

const (
	textSkipped = "Not run: the turn ended before this call."
	textUnknown = "The outcome of this call is not known: it may have happened. Do not repeat it; say so to the person."
)

// bounded is a result as the model sees it: with a known status, valid UTF-8,
// and cut on a rune boundary with a marker. Failure is never shown for an
// outcome that is not known (INV-5).
func bounded(r *runtimev1.ToolResult, limit int32) *runtimev1.ToolResult {
	out := &runtimev1.ToolResult{
		CallId: r.GetCallId(), Status: r.GetStatus(), Code: r.GetCode(),
		Truncated: r.GetTruncated(), FullDigest: r.GetFullDigest(),
	}
	if out.Status == runtimev1.ResultStatus_RESULT_STATUS_UNSPECIFIED ||
		out.Status == runtimev1.ResultStatus_RESULT_STATUS_FAILED && out.Code == string(protocol.CodeOutcomeUnknown) {
		out.Status, out.Code = runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN, string(protocol.CodeOutcomeUnknown)
	}
	text := strings.ToValidUTF8(r.GetText(), "\uFFFD")
	if text == "" && out.Status == runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN {
		text = textUnknown
	}
	var cut bool
	out.Text, cut = Truncate(text, int(limit))
	out.Truncated = out.Truncated || cut
	return out
}

// Truncate bounds text to limit bytes on a rune boundary and marks the cut. A
// limit too small for the marker cuts without one.
func Truncate(text string, limit int) (string, bool) {
	if len(text) <= limit {
		return text, false
	}
	marker := fmt.Sprintf("\n[truncated: the first part of %d bytes]", len(text))
	keep := limit - len(marker)
	if keep <= 0 {
		return onRune(text, max(0, limit)), true
	}
	return onRune(text, keep) + marker, true
}

// onRune cuts at most n bytes without splitting a rune.
func onRune(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// refusal is the result of a call that did not run because of how it was
// written.
func refusal(callID, text string) *runtimev1.ToolResult {
	return &runtimev1.ToolResult{
		CallId: callID, Status: runtimev1.ResultStatus_RESULT_STATUS_FAILED,
		Text: text, Code: string(protocol.CodeInvalidArgument),
	}
}

// Why a call was refused before anything saw it.
const (
	RefusedName   = "name"   // no tool of the accepted set
	RefusedSchema = "schema" // arguments that its schema does not admit
)

// How the two kinds of refusal begin; tool.go completes them.
const (
	noTool       = "There is no tool "
	badArguments = "The arguments "
)

// WhyRefused says which of the two a result is; empty for every other one.
func WhyRefused(r *runtimev1.ToolResult) string {
	switch {
	case r.GetCode() != string(protocol.CodeInvalidArgument):
	case strings.HasPrefix(r.GetText(), noTool):
		return RefusedName
	case strings.HasPrefix(r.GetText(), badArguments):
		return RefusedSchema
	}
	return ""
}

func resultMessage(r *runtimev1.ToolResult) *runtimev1.Message {
	return &runtimev1.Message{Role: runtimev1.Role_ROLE_TOOL,
		Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_ToolResult{ToolResult: r}}}}
}

// clip bounds a name that the model made up.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return onRune(s, most) + "…"
}
