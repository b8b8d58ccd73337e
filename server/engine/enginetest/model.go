package enginetest

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol/canonical"
	"bivouac/edge/runtime/runtimev1"
)

// ModelFunc is a model.
type ModelFunc func(ctx context.Context, req *runtimev1.ModelRequest) (*runtimev1.ModelDone, error)

// Answer is one answer of a scripted model.
type Answer struct {
	Done *runtimev1.ModelDone
	Err  error
}

// Script answers in order, and the same request twice with the same answer: a
// model call that is repeated after a crash is not the next one.
func Script(answers ...Answer) ModelFunc {
	var mu sync.Mutex
	seen := map[string]Answer{}
	return func(_ context.Context, req *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		key := canonical.Digest(b)
		a, known := seen[key]
		if !known {
			if len(answers) == 0 {
				return nil, fmt.Errorf("the script has no answer left for %v", req.Messages[len(req.Messages)-1])
			}
			a, answers = answers[0], answers[1:]
			if a.Err == nil {
				seen[key] = a
			}
		}
		if a.Err != nil {
			return nil, a.Err
		}
		return proto.CloneOf(a.Done), nil
	}
}

// Text answers with text.
func Text(text string) Answer {
	return done(runtimev1.StopReason_STOP_REASON_END, &runtimev1.Block{Kind: &runtimev1.Block_Text{Text: text}})
}

// Fail answers with an error.
func Fail(err error) Answer { return Answer{Err: err} }

// Call is one call of a model's answer.
type Call struct{ ID, Alias, Arguments string }

// Calls answers with calls.
func Calls(calls ...Call) Answer {
	var blocks []*runtimev1.Block
	for _, c := range calls {
		blocks = append(blocks, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{
			ToolCall: &runtimev1.ToolCall{Id: c.ID, Alias: c.Alias, Arguments: c.Arguments}}})
	}
	return done(runtimev1.StopReason_STOP_REASON_TOOL_CALLS, blocks...)
}

func done(why runtimev1.StopReason, blocks ...*runtimev1.Block) Answer {
	return Answer{Done: &runtimev1.ModelDone{StopReason: why, Usage: &runtimev1.Usage{InputTokens: 7, OutputTokens: 3, CostMicroUsd: 10},
		Message: &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT, Blocks: blocks}}}
}
