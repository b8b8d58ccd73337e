// Package relay is an attempt's only way out: model calls from the worker to the
// broker, under a capability that the sandbox never sees (INV-12).
//
// It owns the capability, in memory alone: it is written to no disk, log, error
// or environment (INV-17). It guarantees that a call starts only while the lease
// has authority, read from its clock at each call (INV-20); that a streamed text
// is passed on as it comes; that Close ends every open call with its cause; and
// that every failure reaches the worker with its stable code. It refuses models
// other than the attempt's, and a second call beside an open one.
package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/lease"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// Broker is what a relay asks of a broker.
type Broker interface {
	CallModel(context.Context, *brokerv1.CallModelRequest) (*connect.ServerStreamForClient[brokerv1.CallModelResponse], error)
}

// DialFunc reaches the broker at an address. The returned function ends what it
// holds open. Nothing needs to be dialled before the first call.
type DialFunc func(address string) (Broker, func() error, error)

// Dial makes the DialFunc of a runner: the link with the device key. cfg lacks
// the address alone.
func Dial(cfg link.Config) DialFunc {
	return func(address string) (Broker, func() error, error) {
		cfg.Address = address
		c, err := link.NewClient(cfg)
		if err != nil {
			return nil, nil, err
		}
		return Over(c, c.URL()), c.Close, nil
	}
}

// Over is a Broker behind any HTTP client. Deltas are small: nothing is
// compressed, so nothing waits for more.
func Over(c connect.HTTPClient, url string) Broker {
	return brokerv1connect.NewBrokerServiceClient(c, url, connect.WithAcceptCompression("gzip", nil, nil))
}

// Config of a Relay.
type Config struct {
	Broker Broker
	Lease  *lease.Lease
	// Model is the one route that the attempt's spec names.
	Model string
	// LiveFunc gets every text delta; it must not block.
	LiveFunc func(delta string)
}

// Relay of one attempt.
type Relay struct {
	cfg Config

	mu         sync.Mutex // guards the fields below
	capability string
	current    *call // the open one
	closed     error
}

// call is one model call, from its admission until its answer is whole.
type call struct{ cancel context.CancelCauseFunc }

// New makes a relay that admits nothing until it has a capability.
func New(cfg Config) *Relay { return &Relay{cfg: cfg} }

// Refresh replaces the capability for the calls to come.
func (r *Relay) Refresh(capability string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.capability = capability
}

// Close ends the open call and refuses others, both with cause. The first cause stays.
func (r *Relay) Close(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed != nil {
		return
	}
	r.closed, r.capability = cause, ""
	if r.current != nil {
		r.current.cancel(cause)
	}
}

// CallModel makes one call and passes each event to send as it comes. Its error
// has a code of the table.
func (r *Relay) CallModel(ctx context.Context, req *runtimev1.ModelRequest, send func(*runtimev1.ModelResponse) error) error {
	if req.GetModel() != r.cfg.Model {
		return protocol.Errorf(protocol.CodePolicyDenied, "this attempt may call the model %q, not %q", r.cfg.Model, req.GetModel())
	}
	ctx, one, capability, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer one.cancel(nil)
	defer r.done(one)
	stream, err := r.cfg.Broker.CallModel(ctx, &brokerv1.CallModelRequest{
		Capability: capability,
		CallId:     protocol.NewID[protocol.CallKind](time.Now(), rand.Reader).String(),
		Request:    req,
	})
	if err != nil {
		return failure(ctx, err)
	}
	defer stream.Close()
	for stream.Receive() {
		ev := stream.Msg().GetEvent()
		if delta := ev.GetTextDelta(); delta != "" && r.cfg.LiveFunc != nil {
			r.cfg.LiveFunc(delta)
		}
		if ev.GetDone() != nil {
			// The worker may ask again as soon as it has this: the call must be over before.
			r.done(one)
			return send(ev)
		}
		if err := send(ev); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return failure(ctx, err)
	}
	return failure(ctx, protocol.Errorf(protocol.CodeUnavailable, "the broker ended the model's answer before it was whole"))
}

// open admits one call.
func (r *Relay) open(ctx context.Context) (context.Context, *call, string, error) {
	left := r.cfg.Lease.Authority() // outside of the lock: it has its own
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed != nil:
		return nil, nil, "", r.closed
	case left <= 0:
		return nil, nil, "", ErrNoAuthority
	case r.current != nil:
		return nil, nil, "", protocol.Errorf(protocol.CodeFailedPrecondition, "a model call of this attempt is still open")
	case r.capability == "":
		return nil, nil, "", protocol.Errorf(protocol.CodeUnavailable, "the lease brought no capability for the broker yet")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r.current = &call{cancel}
	return ctx, r.current, r.capability, nil
}

// done makes room for the next call, once.
func (r *Relay) done(one *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == one {
		r.current = nil
	}
}

// ErrNoAuthority: the lease was not renewed in time.
var ErrNoAuthority = protocol.Errorf(protocol.CodeLeaseExpired, "the lease was not renewed in time: the attempt has no authority any more")

// failure prefers the cause of our own cancellation to what the transport made of it.
func failure(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return protocol.FromConnect(err)
}
