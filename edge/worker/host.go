package worker

import (
	"context"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/runtime/runtimev1/runtimev1connect"
)

// Host is the supervisor as an adapter sees it.
type Host struct {
	client runtimev1connect.HostServiceClient
}

func (h *Host) spec(ctx context.Context) (*runtimev1.Spec, error) {
	res, err := h.client.GetSpec(ctx, &runtimev1.GetSpecRequest{})
	if err != nil {
		return nil, protocol.FromConnect(err)
	}
	return res.GetSpec(), nil
}

// Model makes one model call and returns the whole answer. Its error has a code.
func (h *Host) Model(ctx context.Context, req *runtimev1.ModelRequest) (*runtimev1.ModelDone, error) {
	stream, err := h.client.Model(ctx, req)
	if err != nil {
		return nil, protocol.FromConnect(err)
	}
	defer stream.Close()
	for stream.Receive() {
		if done := stream.Msg().GetDone(); done != nil {
			fault.Here(fault.WorkerModelAnswered)
			return done, nil
		}
	}
	if err := stream.Err(); err != nil {
		return nil, protocol.FromConnect(err)
	}
	return nil, protocol.Errorf(protocol.CodeUnavailable, "the model's answer ended before it was whole")
}

// Tool runs one call where its tool belongs. An error means that the host is
// gone or the context ended; a refusal by the host is a result.
//
// state is the loop with the call in flight. With it a call for which a person is
// asked ends the attempt, and another goes on from there; without it such a call
// is refused.
func (h *Host) Tool(ctx context.Context, call *runtimev1.ToolCall, tool *runtimev1.Tool, state *runtimev1.LoopState) (r *runtimev1.ToolResult, err error) {
	if tool.GetPlacement() == runtimev1.Placement_PLACEMENT_SANDBOX {
		r, err = h.exec(ctx, call)
	} else {
		r, err = h.request(ctx, call, state)
	}
	if err != nil {
		return nil, err
	}
	fault.Here(fault.WorkerToolDone)
	return r, nil
}

func (h *Host) exec(ctx context.Context, call *runtimev1.ToolCall) (*runtimev1.ToolResult, error) {
	stream, err := h.client.Exec(ctx, &runtimev1.ExecRequest{Call: call})
	if err != nil {
		return nil, protocol.FromConnect(err)
	}
	defer stream.Close()
	for stream.Receive() {
		if r := stream.Msg().GetResult(); r != nil {
			return r, nil
		}
	}
	if err := stream.Err(); err != nil {
		return nil, protocol.FromConnect(err)
	}
	return nil, protocol.Errorf(protocol.CodeUnavailable, "the tool call ended without a result")
}

func (h *Host) request(ctx context.Context, call *runtimev1.ToolCall, state *runtimev1.LoopState) (*runtimev1.ToolResult, error) {
	res, err := h.client.RequestTool(ctx, &runtimev1.RequestToolRequest{Call: call, State: state})
	if err != nil {
		return nil, protocol.FromConnect(err)
	}
	return res.GetResult(), nil
}

// Emit reports progress, in order, and returns when it is journalled.
func (h *Host) Emit(ctx context.Context, events ...*runtimev1.LoopEvent) error {
	if len(events) == 0 {
		return nil
	}
	if _, err := h.client.Emit(ctx, &runtimev1.EmitRequest{Events: events}); err != nil {
		return protocol.FromConnect(err)
	}
	return nil
}

func (h *Host) finish(ctx context.Context, o *runtimev1.Outcome, s *runtimev1.LoopState) error {
	if _, err := h.client.Finish(ctx, &runtimev1.FinishRequest{Outcome: o, State: s}); err != nil {
		return protocol.FromConnect(err)
	}
	return nil
}
