package loop

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// INV-5: an interrupted call is repeated only where it was seen not to have happened,
// and what nobody can tell is unknown, not failed.
func TestInspectedCalls(t *testing.T) {
	call := &runtimev1.ToolCall{Id: "c1", Alias: "shell", Arguments: "{}"}
	for seen, want := range map[Seen]struct {
		again  bool
		status runtimev1.ResultStatus
		code   protocol.Code
	}{
		SeenDone:    {false, runtimev1.ResultStatus_RESULT_STATUS_OK, ""},
		SeenAbsent:  {true, 0, ""},
		SeenNothing: {false, runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN, protocol.CodeOutcomeUnknown},
		"nonsense":  {false, runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN, protocol.CodeOutcomeUnknown},
	} {
		r, again := Inspected(call, seen, "it says so")
		if again != want.again || r.GetStatus() != want.status || r.GetCode() != string(want.code) || again != (r == nil) {
			t.Errorf("%s: %v, again %v", seen, r, again)
		}
		if r != nil && (r.CallId != "c1" || !strings.HasSuffix(r.Text, "it says so")) {
			t.Errorf("%s: %v", seen, r)
		}
	}
}

// Only a call that is repeated from a checkpoint, of a sandbox tool that says how, is
// looked for.
func TestOnlyInterruptedCallsAreInspected(t *testing.T) {
	shell := func() *runtimev1.Tool {
		return &runtimev1.Tool{Ref: "sandbox.shell", Alias: "shell", InputSchema: `{"type":"object"}`, Effect: runtimev1.Effect_EFFECT_REVERSIBLE_LOCAL,
			Recovery: runtimev1.Recovery_RECOVERY_INSPECTABLE, Placement: runtimev1.Placement_PLACEMENT_SANDBOX, Inspector: "test -e done"}
	}
	s := spec()
	s.Tools = append(s.Tools, shell())
	state, _ := Step(New(s), Begin{})
	state, first := Step(state, says(&runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{Id: "c1", Alias: "shell", Arguments: "{}"}}}))
	if c := first[0].(CallTool); c.Interrupted || c.Inspects() {
		t.Errorf("a first call is inspected: %+v", c)
	}
	_, again := Step(state, Begin{})
	c := again[0].(CallTool)
	if !c.Interrupted || !c.Inspects() {
		t.Fatalf("an interrupted call is not inspected: %+v", c)
	}
	for name, change := range map[string]func(*runtimev1.Tool){
		"no inspector":    func(t *runtimev1.Tool) { t.Inspector = "" },
		"opaque":          func(t *runtimev1.Tool) { t.Recovery = runtimev1.Recovery_RECOVERY_OPAQUE },
		"not its sandbox": func(t *runtimev1.Tool) { t.Placement = runtimev1.Placement_PLACEMENT_DEVICE },
	} {
		other := c
		other.Tool = shell()
		if change(other.Tool); other.Inspects() {
			t.Errorf("%s: it is inspected", name)
		}
	}
}
