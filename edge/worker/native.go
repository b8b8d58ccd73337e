package worker

import (
	"context"
	"errors"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
)

// errWall ends what is in flight when the turn's wall time is over.
var errWall = protocol.Errorf(protocol.CodeDeadlineExceeded, "the turn's time is over")

// native drives the one loop: it carries out each command through the host and
// reports every step before the next.
func native(ctx context.Context, h *Host, s *runtimev1.Spec) (*runtimev1.Outcome, *runtimev1.LoopState, error) {
	d := &driver{host: h, state: loop.New(s)}
	wall, cancel := context.WithTimeoutCause(ctx, time.Duration(s.GetLimits().GetMaxWallMs())*time.Millisecond, errWall)
	defer cancel()
	command, err := d.step(ctx, loop.Begin{})
	for err == nil {
		var in loop.Input
		switch c := command.(type) {
		case loop.Finish:
			return c.Outcome, d.state, nil
		case loop.CallModel:
			in, err = d.model(ctx, wall, c)
		case loop.CallTool:
			in, err = d.tool(ctx, wall, c)
		default:
			err = errors.New("worker: the loop asked for nothing")
		}
		if err == nil {
			command, err = d.step(ctx, in)
		}
	}
	return nil, nil, err
}

// driver is one run of the loop.
type driver struct {
	host  *Host
	state *runtimev1.LoopState
}

// step makes one step and reports what it added. After a tool's result the state
// goes along: a cursor from which another attempt could go on.
func (d *driver) step(ctx context.Context, in loop.Input) (loop.Command, error) {
	before := d.state
	after, commands := loop.Step(before, in)
	d.state = after
	var events []*runtimev1.LoopEvent
	for _, m := range loop.Added(before, after) {
		events = append(events, eventsOf(m)...)
	}
	if _, ran := in.(loop.ToolAnswered); ran && after.Phase != runtimev1.Phase_PHASE_DONE {
		events = append(events, &runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_State{State: after}})
	}
	if err := d.host.Emit(ctx, events...); err != nil {
		return nil, err
	}
	if len(commands) == 0 {
		return nil, nil
	}
	return commands[0], nil
}

// eventsOf reports results as such, so that one that a tool gave and one that the
// loop gave look the same.
func eventsOf(m *runtimev1.Message) []*runtimev1.LoopEvent {
	if m.Role != runtimev1.Role_ROLE_TOOL {
		return []*runtimev1.LoopEvent{{Kind: &runtimev1.LoopEvent_Message{Message: m}}}
	}
	var events []*runtimev1.LoopEvent
	for _, b := range m.Blocks {
		if r := b.GetToolResult(); r != nil {
			events = append(events, &runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ToolFinished{ToolFinished: r}})
		}
	}
	return events
}

func (d *driver) model(ctx, wall context.Context, c loop.CallModel) (loop.Input, error) {
	if d.state.ModelRetries == 0 {
		started := &runtimev1.ModelCallStarted{Number: d.state.ModelCalls}
		if err := d.host.Emit(ctx, &runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ModelCallStarted{ModelCallStarted: started}}); err != nil {
			return nil, err
		}
	}
	if err := pause(wall, c.After); err != nil {
		return ended(ctx, nil)
	}
	done, err := d.host.Model(wall, c.Request)
	if err == nil {
		return loop.ModelAnswered{Done: done}, nil
	}
	if wall.Err() != nil {
		return ended(ctx, nil)
	}
	var coded *protocol.Error
	if !errors.As(err, &coded) {
		return nil, err
	}
	return loop.ModelFailed{Err: coded}, d.modelFailed(ctx, coded)
}

// modelFailed tells who follows the turn of a try that is made again: for people a
// model that is asked for a minute looks like one that thinks. What ends the turn is
// said by its end.
func (d *driver) modelFailed(ctx context.Context, e *protocol.Error) error {
	if !e.Code.Retryable() {
		return nil
	}
	failed := &runtimev1.ModelCallFailed{Code: string(e.Code), Unreachable: e.Detail == protocol.DetailUnreachable}
	return d.host.Emit(ctx, &runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ModelCallFailed{ModelCallFailed: failed}})
}

func (d *driver) tool(ctx, wall context.Context, c loop.CallTool) (loop.Input, error) {
	if err := d.host.Emit(ctx, &runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ToolStarted{ToolStarted: c.Call}}); err != nil {
		return nil, err
	}
	r, err := d.carry(wall, c)
	if err == nil {
		return loop.ToolAnswered{Result: r}, nil
	}
	if wall.Err() == nil {
		return nil, err // the supervisor is gone
	}
	var known *runtimev1.ToolResult
	if c.Tool.GetPlacement() == runtimev1.Placement_PLACEMENT_SANDBOX {
		// The supervisor kills it, and it reached nothing but the workspace.
		known = &runtimev1.ToolResult{CallId: c.Call.Id, Status: runtimev1.ResultStatus_RESULT_STATUS_FAILED,
			Code: string(protocol.CodeDeadlineExceeded), Text: "Stopped: the turn's time is over."}
	}
	return ended(ctx, known)
}

// carry looks for a call that was interrupted, where its tool says how, and makes it
// unless it is known to have happened, or nobody knows.
func (d *driver) carry(ctx context.Context, c loop.CallTool) (*runtimev1.ToolResult, error) {
	if c.Inspects() {
		if r, err := d.inspect(ctx, c); r != nil || err != nil {
			return r, err
		}
	}
	return d.host.Tool(ctx, c.Call, c.Tool, d.state)
}

// ended tells the end of the wall time from the end of the worker.
func ended(ctx context.Context, known *runtimev1.ToolResult) (loop.Input, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return loop.Expire{InFlight: known}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
