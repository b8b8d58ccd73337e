package worker

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/runtime/runtimev1/runtimev1connect"
)

// supervisor is the other end of a worker's channel, and notes what it is asked.
type supervisor struct {
	spec  *runtimev1.Spec
	model func(n int, req *runtimev1.ModelRequest) (*runtimev1.ModelDone, error)
	tool  func(ctx context.Context, call *runtimev1.ToolCall) (*runtimev1.ToolResult, error)

	mu     sync.Mutex
	log    []string
	calls  int
	states []*runtimev1.LoopState
	finish *runtimev1.FinishRequest
}

func (s *supervisor) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *supervisor) GetSpec(context.Context, *runtimev1.GetSpecRequest) (*runtimev1.GetSpecResponse, error) {
	return &runtimev1.GetSpecResponse{Spec: s.spec}, nil
}

func (s *supervisor) Model(_ context.Context, req *runtimev1.ModelRequest, out *connect.ServerStream[runtimev1.ModelResponse]) error {
	s.note("model")
	s.calls++
	done, err := s.model(s.calls, req)
	if err != nil {
		return protocol.ToConnect(err)
	}
	if err := out.Send(&runtimev1.ModelResponse{Kind: &runtimev1.ModelResponse_TextDelta{TextDelta: "…"}}); err != nil {
		return err
	}
	return out.Send(&runtimev1.ModelResponse{Kind: &runtimev1.ModelResponse_Done{Done: done}})
}

func (s *supervisor) Exec(ctx context.Context, req *runtimev1.ExecRequest, out *connect.ServerStream[runtimev1.ExecResponse]) error {
	s.note("exec %s", req.Call.Id)
	r, err := s.tool(ctx, req.Call)
	if err != nil {
		return protocol.ToConnect(err)
	}
	if err := out.Send(&runtimev1.ExecResponse{Kind: &runtimev1.ExecResponse_Output{Output: []byte("raw")}}); err != nil {
		return err
	}
	return out.Send(&runtimev1.ExecResponse{Kind: &runtimev1.ExecResponse_Result{Result: r}})
}

func (s *supervisor) RequestTool(ctx context.Context, req *runtimev1.RequestToolRequest) (*runtimev1.RequestToolResponse, error) {
	s.note("request %s", req.Call.Id)
	r, err := s.tool(ctx, req.Call)
	if err != nil {
		return nil, protocol.ToConnect(err)
	}
	return &runtimev1.RequestToolResponse{Result: r}, nil
}

func (s *supervisor) Emit(_ context.Context, req *runtimev1.EmitRequest) (*runtimev1.EmitResponse, error) {
	for _, ev := range req.Events {
		switch k := ev.Kind.(type) {
		case *runtimev1.LoopEvent_ModelCallStarted:
			s.note("calls model %d", k.ModelCallStarted.Number)
		case *runtimev1.LoopEvent_ModelCallFailed:
			s.note("model failed %s %t", k.ModelCallFailed.Code, k.ModelCallFailed.Unreachable)
		case *runtimev1.LoopEvent_Message:
			s.note("says %s", k.Message.Blocks[0].GetText())
		case *runtimev1.LoopEvent_ToolStarted:
			s.note("starts %s", k.ToolStarted.Id)
		case *runtimev1.LoopEvent_ToolFinished:
			s.note("has %s: %s", k.ToolFinished.CallId, k.ToolFinished.Text)
		case *runtimev1.LoopEvent_State:
			s.note("state")
			s.states = append(s.states, k.State)
		}
	}
	return &runtimev1.EmitResponse{}, nil
}

func (s *supervisor) Finish(_ context.Context, req *runtimev1.FinishRequest) (*runtimev1.FinishResponse, error) {
	s.finish = req
	s.note("finish %s", req.Outcome.Kind)
	return &runtimev1.FinishResponse{}, nil
}

// run gives the worker a whole life and returns how it ended.
func (s *supervisor) run(t *testing.T) error {
	t.Helper()
	ours, theirs := net.Pipe()
	mux := http.NewServeMux()
	mux.Handle(runtimev1connect.NewHostServiceHandler(s))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: protocols}
	conns := make(listener, 1)
	conns <- ours
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(conns) })
	err := Run(t.Context(), theirs)
	server.Close()
	wg.Wait()
	return err
}

// listener of the connections that are put into it.
type listener chan net.Conn

func (l listener) Accept() (net.Conn, error) {
	if c, open := <-l; open {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l listener) Close() error { close(l); return nil }
func (listener) Addr() net.Addr { return address{} }

func toolNamed(alias string, p runtimev1.Placement) *runtimev1.Tool {
	return &runtimev1.Tool{Ref: "x." + alias, Alias: alias, InputSchema: `{"type":"object"}`, Placement: p, Effect: runtimev1.Effect_EFFECT_OUTBOUND}
}

func spec(adapter string) *runtimev1.Spec {
	return &runtimev1.Spec{Adapter: adapter, Model: "main", MaxOutputTokens: 10,
		Tools:    []*runtimev1.Tool{toolNamed("here", runtimev1.Placement_PLACEMENT_SANDBOX), toolNamed("there", runtimev1.Placement_PLACEMENT_GATEWAY)},
		Limits:   &runtimev1.Limits{MaxModelCalls: 9, MaxToolCalls: 9, MaxCorrections: 2, MaxTokens: 1000, MaxCostMicroUsd: 1000, MaxWallMs: 600_000, MaxResultBytes: 1000},
		Messages: []*runtimev1.Message{{Role: runtimev1.Role_ROLE_USER, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: "go"}}}}}}
}

func text(s string) *runtimev1.ModelDone {
	return &runtimev1.ModelDone{Message: &runtimev1.Message{Role: runtimev1.Role_ROLE_ASSISTANT, Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: s}}}}, StopReason: runtimev1.StopReason_STOP_REASON_END}
}

func calls(say string, aliases ...string) *runtimev1.ModelDone {
	done := text(say)
	done.StopReason = runtimev1.StopReason_STOP_REASON_TOOL_CALLS
	for _, a := range aliases {
		done.Message.Blocks = append(done.Message.Blocks, &runtimev1.Block{Kind: &runtimev1.Block_ToolCall{ToolCall: &runtimev1.ToolCall{Id: "id_" + a, Alias: a, Arguments: "{}"}}})
	}
	return done
}

func ok(_ context.Context, c *runtimev1.ToolCall) (*runtimev1.ToolResult, error) {
	return &runtimev1.ToolResult{CallId: c.Id, Status: runtimev1.ResultStatus_RESULT_STATUS_OK, Text: "done " + c.Alias}, nil
}

// Every step is reported before the next is made, each tool runs where it
// belongs, and a state follows each result.
func TestNative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &supervisor{spec: spec("native"), tool: ok, model: func(n int, _ *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
			if n == 1 {
				return calls("I work", "here", "there"), nil
			}
			return text("all done"), nil
		}}
		if err := s.run(t); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"calls model 1", "model", "says I work",
			"starts id_here", "exec id_here", "has id_here: done here", "state",
			"starts id_there", "request id_there", "has id_there: done there", "state",
			"calls model 2", "model", "says all done", "finish OUTCOME_KIND_COMPLETED",
		}
		if !slices.Equal(s.log, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(s.log, "\n"), strings.Join(want, "\n"))
		}
		if s.finish.Outcome.Text != "all done" || len(s.finish.State.Messages) != 5 {
			t.Errorf("finish %v", s.finish)
		}
	})
}

// Another attempt goes on from a state: nothing that has a result runs again.
func TestNativeResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &supervisor{spec: spec("native"), tool: ok, model: func(n int, _ *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
			if n == 1 {
				return calls("I work", "here"), nil
			}
			return nil, protocol.Errorf(protocol.CodeLeaseExpired, "the machine is gone")
		}}
		if err := first.run(t); err != nil {
			t.Fatal(err)
		}
		second := &supervisor{spec: spec("native"), tool: ok, model: func(int, *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) { return text("end"), nil }}
		second.spec.Resume = first.states[0]
		if err := second.run(t); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(second.log, ","); got != "calls model 2,model,says end,finish OUTCOME_KIND_COMPLETED" {
			t.Errorf("the second attempt did %s", got)
		}
	})
}

// Retryable failures are tried again after the loop's own waits, and each is told;
// others are final, and told by the turn's end.
func TestNativeRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &supervisor{spec: spec("native"), model: func(n int, _ *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
			if n == 1 {
				return nil, &protocol.Error{Code: protocol.CodeUnavailable, Detail: protocol.DetailUnreachable, Message: "no way to the broker", RetryAfter: 20 * time.Second}
			}
			if n < 3 {
				return nil, &protocol.Error{Code: protocol.CodeRateLimited, Message: "slow down", RetryAfter: 20 * time.Second}
			}
			return text("end"), nil
		}}
		began := time.Now()
		if err := s.run(t); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d != 40*time.Second {
			t.Errorf("it waited %v", d)
		}
		if got := strings.Join(s.log, ","); got != "calls model 1,model,model failed unavailable true,model,model failed rate_limited false,model,says end,finish OUTCOME_KIND_COMPLETED" {
			t.Errorf("it did %s", got)
		}
	})
}

// When the wall time is over, what a sandbox did is known, and what the server
// was asked for is not (INV-5).
func TestNativeExpires(t *testing.T) {
	for alias, want := range map[string]runtimev1.ResultStatus{
		"here": runtimev1.ResultStatus_RESULT_STATUS_FAILED, "there": runtimev1.ResultStatus_RESULT_STATUS_UNKNOWN,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &supervisor{spec: spec("native"),
				model: func(int, *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) { return calls("", alias), nil },
				tool: func(ctx context.Context, _ *runtimev1.ToolCall) (*runtimev1.ToolResult, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}}
			began := time.Now()
			if err := s.run(t); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d != 10*time.Minute || s.finish.Outcome.Reason != "max_wall" {
				t.Errorf("%s: %v after %v", alias, s.finish.Outcome, d)
			}
			m := s.finish.State.Messages
			if got := m[len(m)-1].Blocks[0].GetToolResult(); got.GetStatus() != want {
				t.Errorf("%s: the call in flight has %v", alias, got)
			}
		})
	}
}

func TestUnknownAdapter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &supervisor{spec: spec("pi")}
		if err := s.run(t); err != nil || s.finish.Outcome.Reason != "incompatible" {
			t.Errorf("%v, %v", err, s.finish)
		}
		if got := Adapters(); !slices.Equal(got, protocol.Adapters) {
			t.Errorf("adapters %v", got)
		}
	})
}

func TestScripted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &supervisor{spec: spec("scripted"), tool: ok, model: func(int, *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) { return text("hm"), nil }}
		s.spec.Script = []byte(`{"steps":[{"tool":{"alias":"here","arguments":{}}},{"model":true},{"wait_ms":500},{"finish":"end"}]}`)
		if err := s.run(t); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.log, ","); got != "starts step_0,exec step_0,has step_0: done here,state,model,says hm,finish OUTCOME_KIND_COMPLETED" || s.finish.Outcome.Text != "end" {
			t.Errorf("it did %s", got)
		}
		s.spec.Script = []byte(`{"steps":[{"wait":1}]}`)
		if err := s.run(t); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("a script with an unknown step: %v", err)
		}
	})
}
