package broker

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/budget"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/provider"
	"bivouac/server/broker/secret"
	"bivouac/server/intercept"
)

// CallModel makes one model call and passes its text on as it comes.
func (s brokerService) CallModel(ctx context.Context, in *brokerv1.CallModelRequest, out *connect.ServerStream[brokerv1.CallModelResponse]) error {
	return s.callModel(ctx, in, out.Send)
}

func (b *Broker) callModel(ctx context.Context, in *brokerv1.CallModelRequest, send func(*brokerv1.CallModelResponse) error) error {
	req := &request{peer: peerOf(ctx), token: in.GetCapability(), model: in.GetRequest().GetModel()}
	ctx, fl := b.flows.begin(ctx, req)
	defer b.flows.end(fl)
	err := b.admit(ctx, fl)
	annotate(ctx, req)
	if err != nil {
		return err
	}
	ctx, cancel := b.untilDeadline(ctx, req)
	defer cancel()
	c, err := b.prepareModel(ctx, req, in.GetRequest())
	if err != nil {
		return err
	}
	answer, err := c.complete(ctx, req, send)
	b.keyless.note(req, err)
	b.refusedKey(req, c, err)
	done, err := c.settle(answer, err)
	if err != nil {
		return because(ctx, err)
	}
	return send(&brokerv1.CallModelResponse{Event: &runtimev1.ModelResponse{Kind: &runtimev1.ModelResponse_Done{Done: done}}})
}

// annotate names the turn in the log line of the request.
func annotate(ctx context.Context, r *request) {
	if r.known {
		intercept.Annotate(ctx, slog.String("turn", r.claims.Turn.String()), slog.String("attempt", r.claims.Attempt.String()),
			slog.String("agent", r.claims.Agent), slog.String("model", r.model), slog.String("destination", r.destination()))
	}
}

// untilDeadline ends a flow with its turn. Feed time is judged once; after it
// the timer counts, and a suspend is caught by the feed's age.
func (b *Broker) untilDeadline(ctx context.Context, r *request) (context.Context, context.CancelFunc) {
	now, ok := b.feed.Now()
	if r.claims.Deadline.IsZero() || !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, r.claims.Deadline.Sub(now), protocol.Errorf(protocol.CodeDeadlineExceeded, "the turn's time is over"))
}

// because prefers the cause of a closed flow over what its end looked like.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// modelCall is an admitted and paid call.
type modelCall struct {
	b     *Broker
	route *route
	call  provider.Call
	input int64 // estimated tokens
	hold  *budget.Hold
	cap   *budget.SpendHold
	sent  bool // the first delta went out
}

// prepareModel finds the key and reserves what the call may cost at most. INV-19.
func (b *Broker) prepareModel(ctx context.Context, r *request, in *runtimev1.ModelRequest) (*modelCall, error) {
	rt := b.routes[r.model]
	in.MaxOutputTokens = outputLimit(in.GetMaxOutputTokens(), rt.cfg.MaxOutputTokens)
	body, err := rt.provider.Encode(rt.cfg.Model, in)
	if err != nil {
		return nil, err
	}
	if err := b.leaves(ctx, r, rt.provider.Wire()); err != nil {
		return nil, err
	}
	c := &modelCall{b: b, route: rt, input: budget.Estimate(len(body)), call: provider.Call{Model: rt.cfg.Model, Request: in}}
	if c.call.Key, c.call.Retired, err = b.routeKey(ctx, rt, r); err != nil {
		return nil, err
	}
	most, err := rt.price.most(c.input, int64(in.MaxOutputTokens))
	if err != nil {
		return nil, err
	}
	slice := budget.Slice{ID: r.claims.Slice, Boot: r.claims.SliceBoot, Ceiling: r.claims.SliceCeiling}
	if c.hold, err = b.ledger.Reserve(slice, most); err != nil {
		return nil, refusedBy(ByBudget, err)
	}
	if c.cap, err = b.spend.Reserve(b.caps.Load().account(r.claims), most); err != nil {
		c.hold.Settle(0, budget.Tokens{})
		return nil, refusedBy(ByCap, err)
	}
	return c, nil
}

// outputLimit is always set: what has no bound has no price.
func outputLimit(asked, most int32) int32 {
	if asked <= 0 || asked > most {
		return most
	}
	return asked
}

func (b *Broker) routeKey(ctx context.Context, rt *route, r *request) (key secret.Value, before []secret.Value, err error) {
	if rt.cfg.Credential == "" {
		return secret.Value{}, nil, nil
	}
	tenant := rt.keyOwner(r.claims.Tenant)
	if key, before, err = b.routeValue(ctx, tenant, rt.cfg.Credential); err != nil {
		b.keyless.lacked(r, err)
	}
	return key, before, err
}

// complete tries the call until it is answered, fails for good, or there is no
// time for another try. What is tried again brought nothing and owes nothing
// (provider.Rules), so one reservation covers every try. INV-19.
func (c *modelCall) complete(ctx context.Context, r *request, send func(*brokerv1.CallModelResponse) error) (*provider.Answer, error) {
	var waited time.Duration
	for tries := 1; ; tries++ {
		answer, err := c.try(ctx, send)
		var f *provider.Failure
		if !errors.As(err, &f) {
			return answer, err
		}
		left := time.Duration(math.MaxInt64)
		if end, ok := ctx.Deadline(); ok {
			left = time.Until(end)
		}
		pause, again := provider.DefaultRetry.Pause(f, tries, waited, left, rand.Float64())
		if !again {
			return nil, err
		}
		c.b.log.Info("a model call is tried again", "model", c.route.cfg.Name, "turn", r.claims.Turn, "after", f.Rule().What, "pause", pause)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
		waited += pause
		if err := c.b.repeat(r); err != nil {
			return nil, err
		}
	}
}

func (c *modelCall) try(ctx context.Context, send func(*brokerv1.CallModelResponse) error) (*provider.Answer, error) {
	return c.route.provider.Complete(ctx, c.call, func(text string) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		err := send(&brokerv1.CallModelResponse{Event: &runtimev1.ModelResponse{Kind: &runtimev1.ModelResponse_TextDelta{TextDelta: text}}})
		if !c.sent {
			c.sent = true
			fault.Here(fault.BrokerModelStreaming)
		}
		return err
	})
}

// settle replaces the reservation by what was used.
func (c *modelCall) settle(a *provider.Answer, failure error) (*runtimev1.ModelDone, error) {
	used := c.used(a, failure)
	cost, err := c.route.price.cost(used)
	if err != nil { // a provider that counts beyond reason: the whole reservation is gone
		cost = c.hold.Amount()
	}
	c.hold.Settle(cost, budget.Tokens{Input: used.Input, Output: used.Output})
	if err := c.cap.Settle(cost); err != nil {
		c.b.log.Error("the spend of this hour was not saved", "error", err)
	}
	if failure != nil {
		return nil, failure
	}
	return &runtimev1.ModelDone{Message: a.Message, StopReason: a.Stop, Usage: &runtimev1.Usage{
		InputTokens: used.Input, OutputTokens: used.Output, CostMicroUsd: cost,
		CacheReadTokens: used.CacheRead, CacheWriteTokens: used.CacheWrite,
	}}, nil
}

// used is what the provider counted. Where it did not, what left and what came is
// estimated, so that an answer that broke off is never free.
func (c *modelCall) used(a *provider.Answer, failure error) provider.Usage {
	var f *provider.Failure
	switch {
	case a != nil && a.Usage.Counted:
		return a.Usage
	case a != nil:
		return provider.Usage{Input: c.input, Output: budget.Estimate(answerBytes(a))}
	case !errors.As(failure, &f):
		return provider.Usage{}
	}
	switch f.Rule().Owed {
	case provider.Nothing:
		return provider.Usage{}
	case provider.TheInput:
		return provider.Usage{Input: c.input}
	}
	u := f.Usage
	if u.Input == 0 {
		u.Input = c.input
	}
	if !u.Counted {
		u.Output = max(u.Output, budget.Estimate(f.Bytes))
	}
	return u
}

func answerBytes(a *provider.Answer) (n int) {
	for _, block := range a.Message.GetBlocks() {
		n += len(block.GetText()) + len(block.GetToolCall().GetAlias()) + len(block.GetToolCall().GetArguments())
	}
	return n
}
