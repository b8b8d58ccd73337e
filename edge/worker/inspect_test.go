package worker

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
)

// INV-5: a call that an earlier attempt may have begun is looked for in the new
// sandbox first. What happened is not repeated, what did not is made, and what the
// inspector cannot tell is unknown to the model.
func TestInterruptedCallIsInspected(t *testing.T) {
	exit := func(text string) *runtimev1.ToolResult {
		return &runtimev1.ToolResult{Status: runtimev1.ResultStatus_RESULT_STATUS_FAILED, Code: "exit_status", Text: text}
	}
	for name, c := range map[string]struct {
		said *runtimev1.ToolResult
		want string // what the second attempt did with the call
	}{
		"happened":         {&runtimev1.ToolResult{Status: runtimev1.ResultStatus_RESULT_STATUS_OK, Text: "found"}, "exec id_again,has id_again: This call was interrupted, and it had happened"},
		"did not happen":   {exit("[exit status 10]"), "exec id_again,exec id_again,has id_again: done again"},
		"a shell fails":    {exit("cat: mark: Permission denied\n[exit status 1]"), "exec id_again,has id_again: The outcome of this call is not known"},
		"another's ten":    {exit("[exit status 110]"), "exec id_again,has id_again: The outcome of this call is not known"},
		"cannot tell":      {exit("no such place\n[exit status 2]"), "exec id_again,has id_again: The outcome of this call is not known"},
		"is not there":     {exit("sh: look: not found\n[exit status 127]"), "exec id_again,has id_again: The outcome of this call is not known"},
		"says it, and ran": {exit("[exit status 10]\n[exit status 3]"), "exec id_again,has id_again: The outcome of this call is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inspectable := func() *runtimev1.Spec {
					s := spec("native")
					tool := toolNamed("again", runtimev1.Placement_PLACEMENT_SANDBOX)
					tool.Recovery, tool.Inspector, tool.Effect = runtimev1.Recovery_RECOVERY_INSPECTABLE, "look for it", runtimev1.Effect_EFFECT_REVERSIBLE_LOCAL
					s.Tools = append(s.Tools, tool)
					return s
				}
				first := &supervisor{spec: inspectable(), model: func(int, *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
					return calls("I work", "here", "again"), nil
				},
					tool: func(ctx context.Context, call *runtimev1.ToolCall) (*runtimev1.ToolResult, error) {
						if call.Alias == "again" {
							return nil, protocol.Errorf(protocol.CodeLeaseExpired, "the machine is gone")
						}
						return ok(ctx, call)
					}}
				if err := first.run(t); err == nil {
					t.Fatal("the first attempt was not interrupted")
				}
				var asked []string
				second := &supervisor{spec: inspectable(), model: func(int, *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) { return text("end"), nil },
					tool: func(ctx context.Context, call *runtimev1.ToolCall) (*runtimev1.ToolResult, error) {
						if asked = append(asked, call.Arguments); len(asked) == 1 {
							return c.said, nil
						}
						return ok(ctx, call)
					}}
				second.spec.Resume = first.states[0]
				if err := second.run(t); err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(second.log, ","); !strings.HasPrefix(got, "starts id_again,"+c.want) {
					t.Errorf("the second attempt did %s", got)
				}
				var look struct{ Command string }
				if err := json.Unmarshal([]byte(asked[0]), &look); err != nil || look.Command != "BIVOUAC_CALL='{}'\nexport BIVOUAC_CALL\nlook for it" {
					t.Errorf("it looked by %q, %v", look.Command, err)
				}
			})
		})
	}
}
