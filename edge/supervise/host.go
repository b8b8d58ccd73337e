package supervise

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/relay"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/runtime/runtimev1/runtimev1connect"
)

// host is what the worker of the attempt may ask for. The worker is not
// trusted: everything is judged by the spec, not by what it says.
type host struct{ *attempt }

var _ runtimev1connect.HostServiceHandler = host{}

// maxRequest bounds one message of the worker; a loop state with its transcript
// is the largest.
const maxRequest = 64 << 20

func (a *attempt) hostHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(runtimev1connect.NewHostServiceHandler(host{a}, connect.WithInterceptors(coded(a.cfg.Log)), connect.WithReadMaxBytes(maxRequest)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.arrive() {
			http.Error(w, "the attempt is over", http.StatusServiceUnavailable)
			return
		}
		defer a.depart()
		mux.ServeHTTP(w, r)
	})
}

// GetSpec tells the worker all that it is told.
func (h host) GetSpec(context.Context, *runtimev1.GetSpecRequest) (*runtimev1.GetSpecResponse, error) {
	return &runtimev1.GetSpecResponse{Spec: h.spec}, nil
}

// Model passes one call to the relay, and again when authority came back after it
// had cut the call off.
func (h host) Model(ctx context.Context, req *runtimev1.ModelRequest, out *connect.ServerStream[runtimev1.ModelResponse]) error {
	for {
		if err := h.permit(ctx); err != nil {
			return err
		}
		err := h.relay.CallModel(ctx, req, out.Send)
		if !errors.Is(err, relay.ErrNoAuthority) || ctx.Err() != nil {
			return err
		}
		// Authority went while it was open. What came of the answer was text for
		// whoever watches; the whole answer is the next call's.
	}
}

// Exec runs one call of a sandbox tool.
func (h host) Exec(ctx context.Context, req *runtimev1.ExecRequest, out *connect.ServerStream[runtimev1.ExecResponse]) error {
	if err := h.permit(ctx); err != nil {
		return err
	}
	result, err := h.exec(ctx, req.GetCall(), func(b []byte) error {
		return out.Send(&runtimev1.ExecResponse{Kind: &runtimev1.ExecResponse_Output{Output: b}})
	})
	if err != nil {
		return err
	}
	return out.Send(&runtimev1.ExecResponse{Kind: &runtimev1.ExecResponse_Result{Result: result}})
}

// RequestTool asks the server: the wish is on the disk before the server can see
// it (INV-4), and the answer is whatever the engine makes of it.
func (h host) RequestTool(ctx context.Context, req *runtimev1.RequestToolRequest) (*runtimev1.RequestToolResponse, error) {
	call := req.GetCall()
	tool := h.tool(call.GetAlias())
	if tool == nil || tool.GetPlacement() == runtimev1.Placement_PLACEMENT_SANDBOX || tool.GetPlacement() == runtimev1.Placement_PLACEMENT_UNSPECIFIED {
		return nil, protocol.Errorf(protocol.CodePolicyDenied, "the server dispatches no tool %q for this turn", call.GetAlias())
	}
	if len(call.GetArguments()) > maxArguments {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the arguments of %s have more than %d bytes", call.GetAlias(), maxArguments)
	}
	if err := h.permit(ctx); err != nil {
		return nil, err
	}
	id, answer := h.requests.open(call.GetId())
	record := &runnerv1.ToolRequested{CallId: id, Alias: call.GetAlias(), Arguments: call.GetArguments(), CanPark: req.GetState() != nil}
	if _, err := h.records.append(&runnerv1.Record{Kind: &runnerv1.Record_ToolRequested{ToolRequested: record}}, true); err != nil {
		return nil, err
	}
	result, err := h.requests.wait(ctx, call.GetId(), id, answer)
	if errors.Is(err, errParked) {
		h.park(req.GetState())
	}
	if err != nil {
		return nil, err
	}
	h.soil()
	return &runtimev1.RequestToolResponse{Result: result}, nil
}

// Emit journals what the loop did. A state makes a checkpoint when something
// happened since the last one that a new attempt must not lose.
func (h host) Emit(ctx context.Context, req *runtimev1.EmitRequest) (*runtimev1.EmitResponse, error) {
	for _, ev := range req.GetEvents() {
		if state := ev.GetState(); state != nil {
			if err := h.checkpoint(ctx, state); err != nil {
				return nil, err
			}
			continue
		}
		b, err := deterministic.Marshal(ev)
		if err != nil {
			return nil, err
		}
		if _, err := h.records.append(&runnerv1.Record{Kind: &runnerv1.Record_LoopEvent{LoopEvent: b}}, false); err != nil {
			return nil, err
		}
	}
	return &runtimev1.EmitResponse{}, nil
}

// Finish takes the loop's end, once.
func (h host) Finish(_ context.Context, req *runtimev1.FinishRequest) (*runtimev1.FinishResponse, error) {
	if req.GetOutcome() == nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the end of a loop needs an outcome")
	}
	h.progress.Lock()
	first := h.ended == nil
	if first {
		h.ended = req
	}
	h.progress.Unlock()
	if !first {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the loop has finished already")
	}
	h.finished.fire()
	return &runtimev1.FinishResponse{}, nil
}

func (a *attempt) tool(alias string) *runtimev1.Tool {
	for _, t := range a.spec.GetTools() {
		if t.GetAlias() == alias {
			return t
		}
	}
	return nil
}
