package loop

import (
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// Seen is what an inspector found of a call that was interrupted.
type Seen string

const (
	// SeenDone: the effect is there.
	SeenDone Seen = "happened"
	// SeenAbsent: it is not.
	SeenAbsent Seen = "did not happen"
	// SeenNothing: the inspector cannot tell, or did not run.
	SeenNothing Seen = "cannot tell"
)

// remedy of an interrupted call of an inspectable sandbox tool.
type remedy struct {
	again  bool
	status runtimev1.ResultStatus
	code   protocol.Code
	text   string
}

// inspected is the whole table: what was seen to have happened is not repeated, what
// was seen not to have happened is, and what nobody can tell is unknown, never a
// failure and never repeated. INV-5.
var inspected = map[Seen]remedy{
	SeenDone: {status: runtimev1.ResultStatus_RESULT_STATUS_OK,
		text: "This call was interrupted, and it had happened: its inspector found it. What it printed is lost."},
	SeenAbsent:  {again: true},
	SeenNothing: {status: runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN, code: protocol.CodeOutcomeUnknown, text: textUnknown},
}

// Inspects reports a call that is to be looked for before it is made again.
func (c CallTool) Inspects() bool {
	return c.Interrupted && c.Tool.GetRecovery() == runtimev1.Recovery_RECOVERY_INSPECTABLE &&
		c.Tool.GetInspector() != "" && c.Tool.GetPlacement() == runtimev1.Placement_PLACEMENT_SANDBOX
}

// Inspected is the result of a call of which its inspector saw that; again says that
// there is none, and that the call is made. What the inspector said goes along.
func Inspected(call *runtimev1.ToolCall, seen Seen, said string) (r *runtimev1.ToolResult, again bool) {
	what, ok := inspected[seen]
	if !ok {
		what = inspected[SeenNothing]
	}
	if what.again {
		return nil, true
	}
	r = &runtimev1.ToolResult{CallId: call.GetId(), Status: what.status, Code: string(what.code), Text: what.text}
	if said != "" {
		r.Text += "\nThe inspector: " + said
	}
	return r, false
}
