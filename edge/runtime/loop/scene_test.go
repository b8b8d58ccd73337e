package loop

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"

	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const pathSchema = `{"additionalProperties":false,"properties":{"path":{"maxLength":64,"type":"string"}},"required":["path"],"type":"object"}`

func readTool() *runtimev1.Tool {
	return &runtimev1.Tool{Ref: "files.read", Alias: "read", Description: "Reads.", InputSchema: pathSchema,
		Effect: runtimev1.Effect_EFFECT_READ, Recovery: runtimev1.Recovery_RECOVERY_IDEMPOTENT,
		Placement: runtimev1.Placement_PLACEMENT_DEVICE}
}

func sendTool() *runtimev1.Tool {
	return &runtimev1.Tool{Ref: "http:send", Alias: "send", Description: "Sends.",
		InputSchema: `{"properties":{"to":{"type":"string"}},"required":["to"],"type":"object"}`,
		Effect:      runtimev1.Effect_EFFECT_OUTBOUND, Recovery: runtimev1.Recovery_RECOVERY_OPAQUE,
		Placement: runtimev1.Placement_PLACEMENT_GATEWAY, Destination: "mail", NeedsApproval: true}
}

func spec() *runtimev1.Spec {
	return &runtimev1.Spec{
		Model: "main", Instructions: "Be brief.", MaxOutputTokens: 100,
		Tools: []*runtimev1.Tool{readTool(), sendTool()},
		Limits: &runtimev1.Limits{MaxModelCalls: 6, MaxToolCalls: 4, MaxCorrections: 2, MaxTokens: 1000,
			MaxCostMicroUsd: 1000, MaxWallMs: 60_000, MaxResultBytes: 200},
		Messages: []*runtimev1.Message{textMessage(runtimev1.Role_ROLE_USER, "What is in a.txt?")},
	}
}

// says and asks build a model's answer; each uses 10 tokens and $0.00001.
func says(blocks ...*runtimev1.Block) ModelAnswered {
	stop := runtimev1.StopReason_STOP_REASON_END
	for _, b := range blocks {
		if b.GetToolCall() != nil {
			stop = runtimev1.StopReason_STOP_REASON_TOOL_CALLS
		}
	}
	return ModelAnswered{&runtimev1.ModelDone{
		Message:    &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT, Blocks: blocks},
		StopReason: stop, Usage: &runtimev1.Usage{InputTokens: 8, OutputTokens: 2, CostMicroUsd: 10},
	}}
}

func text(s string) *runtimev1.Block {
	return &runtimev1.Block{Kind: &runtimev1.Block_Text{Text: s}}
}

func call(id, alias, arguments string) *runtimev1.Block {
	return &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{Id: id, Alias: alias, Arguments: arguments}}}
}

func answers(id string, status runtimev1.ResultStatus, text, code string) ToolAnswered {
	return ToolAnswered{&runtimev1.ToolResult{CallId: id, Status: status, Text: text, Code: code}}
}

func ok(id, text string) ToolAnswered {
	return answers(id, runtimev1.ResultStatus_RESULT_STATUS_OK, text, "")
}

func fails(code protocol.Code) ModelFailed {
	return ModelFailed{&protocol.Error{Code: code, Message: "the provider said " + string(code)}}
}

// scene steps through inputs and writes down what happened: the inputs, what was
// appended, the commands, and the state at the end. It also holds every step to
// the promises of the package.
func scene(t testing.TB, s *runtimev1.Spec, inputs ...Input) (string, *runtimev1.LoopState) {
	t.Helper()
	var b strings.Builder
	state := New(s)
	for _, in := range append([]Input{Begin{}}, inputs...) {
		before := proto.CloneOf(state)
		next, commands := Step(state, in)
		if !proto.Equal(state, before) {
			t.Fatalf("step %T changed the state it was given", in)
		}
		if len(commands) > 1 {
			t.Fatalf("step %T has %d commands outstanding", in, len(commands))
		}
		fmt.Fprintf(&b, "> %s\n", strings.TrimPrefix(fmt.Sprintf("%T", in), "loop."))
		for _, m := range Added(state, next) {
			b.WriteString(render(m))
		}
		for _, c := range commands {
			b.WriteString(renderCommand(c))
		}
		state = next
	}
	fmt.Fprintf(&b, "= %s models=%d tools=%d corrections=%d retries=%d pending=%d tokens=%d cost=%d\n",
		strings.TrimPrefix(state.Phase.String(), "PHASE_"), state.ModelCalls, state.ToolCalls, state.Corrections,
		state.ModelRetries, len(state.Pending), state.Usage.GetInputTokens()+state.Usage.GetOutputTokens(), state.Usage.GetCostMicroUsd())
	onceEach(t, state)
	return b.String(), state
}

func render(m *runtimev1.Message) string {
	var b strings.Builder
	role := strings.ToLower(strings.TrimPrefix(m.Role.String(), "ROLE_"))
	for _, block := range m.Blocks {
		switch k := block.Kind.(type) {
		case *runtimev1.Block_Text:
			fmt.Fprintf(&b, "  %s text %q\n", role, k.Text)
		case *runtimev1.Block_ToolCall:
			fmt.Fprintf(&b, "  %s call %s %s %s\n", role, k.ToolCall.Id, k.ToolCall.Alias, k.ToolCall.Arguments)
		case *runtimev1.Block_ToolResult:
			r := k.ToolResult
			fmt.Fprintf(&b, "  %s result %s %s %q code=%s truncated=%t\n", role, r.CallId,
				strings.TrimPrefix(r.Status.String(), "RESULT_STATUS_"), r.Text, r.Code, r.Truncated)
		}
	}
	return b.String()
}

func renderCommand(c Command) string {
	switch c := c.(type) {
	case CallModel:
		return fmt.Sprintf("  ! model %s messages=%d tools=%d after=%s\n", c.Request.Model, len(c.Request.Messages), len(c.Request.Tools), c.After)
	case CallTool:
		return fmt.Sprintf("  ! tool %s %s %s %s\n", c.Tool.Ref, c.Call.Id, c.Call.Alias, c.Call.Arguments)
	case Finish:
		o := c.Outcome
		return fmt.Sprintf("  ! finish %s text=%q reason=%s message=%q\n",
			strings.TrimPrefix(o.Kind.String(), "OUTCOME_KIND_"), o.Text, o.Reason, o.Message)
	}
	return fmt.Sprintf("  ! %T\n", c)
}

// onceEach is the promise about calls: each has exactly one result, in order,
// before the next answer, unless it is still pending.
func onceEach(t testing.TB, s *runtimev1.LoopState) {
	t.Helper()
	var open []string
	for i, m := range s.Messages {
		for _, b := range m.Blocks {
			switch k := b.Kind.(type) {
			case *runtimev1.Block_ToolCall:
				open = append(open, k.ToolCall.Id)
			case *runtimev1.Block_ToolResult:
				if len(open) == 0 || open[0] != k.ToolResult.CallId {
					t.Fatalf("message %d is the result of %s; open calls: %v", i, k.ToolResult.CallId, open)
				}
				open = open[1:]
			case *runtimev1.Block_Text:
				if m.Role == runtimev1.Role_ROLE_USER && len(open) > 0 {
					t.Fatalf("message %d comes before the results of %v", i, open)
				}
			}
		}
	}
	pending := make([]string, 0, len(s.Pending))
	for _, c := range s.Pending {
		pending = append(pending, c.Id)
	}
	if strings.Join(open, ",") != strings.Join(pending, ",") {
		t.Fatalf("calls without a result: %v; pending: %v", open, pending)
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run the test with -update", err)
	}
	if got != string(want) {
		t.Errorf("%s differs from the golden file:\n%s\nwant:\n%s", name, got, want)
	}
}
