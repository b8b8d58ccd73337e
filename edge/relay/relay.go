// Package relay is an attempt's only way out: model calls from the worker, and
// package requests of sandboxed code, to the broker, under a capability that the
// sandbox never sees (INV-12).
//
// It owns the capability, in memory alone: it is written to no disk, log, error
// or environment (INV-17). It guarantees that a call starts only while the lease
// has authority, read from its clock at each call (INV-20); that a streamed text
// is passed on as it comes; that a call for which the budget slice is too small
// waits for a larger one while there can be one; that Close ends every open call
// with its cause; that one whose slice was cut for another start of the broker waits
// for the next slice; and that every failure reaches the worker with its stable code.
// It refuses models other than the attempt's, and a second call beside an open one.
// Of a package request it judges shape and size alone: what may be asked of whom is
// the broker's to say.
package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
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
	// Fetch makes a package request. Its URL is not set yet.
	Fetch(*http.Request) (*http.Response, error)
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
		return probing{Over(c, c.URL()), c}, c.Close, nil
	}
}

// probeLimit is what a look for QUIC may cost a call. It is made seldom, and less
// and less often.
const probeLimit = 500 * time.Millisecond

// probing looks for QUIC between calls while the link runs over TCP: what is open
// stays where it is.
type probing struct {
	Broker
	link *link.Client
}

func (p probing) CallModel(ctx context.Context, r *brokerv1.CallModelRequest) (*connect.ServerStreamForClient[brokerv1.CallModelResponse], error) {
	if wait, ok := p.link.NextProbe(); ok && wait == 0 {
		limit, cancel := context.WithTimeout(ctx, probeLimit)
		_, _ = p.link.Upgrade(limit, nil) // the link remembers why not
		cancel()
	}
	return p.Broker.CallModel(ctx, r)
}

// Over is a Broker behind any HTTP client. Deltas are small: nothing is
// compressed, so nothing waits for more.
func Over(c connect.HTTPClient, url string) Broker {
	return over{brokerv1connect.NewBrokerServiceClient(c, url, connect.WithAcceptCompression("gzip", nil, nil)), c, url}
}

// Config of a Relay.
type Config struct {
	Broker Broker
	Lease  *lease.Lease
	// Model is the one route that the attempt's spec names.
	Model string
	// LiveFunc gets every text delta; it must not block.
	LiveFunc func(delta string)
	// ShortFunc is told that calls want a larger or a newer slice, and that they do
	// not any more, in that order; it must not block, or call the relay.
	ShortFunc func(short bool)
}

// Slice is the part of the budget that a capability carries. Of a Whole one the
// broker's refusal is final.
type Slice struct {
	ID      string
	Ceiling int64
	Whole   bool
}

// Relay of one attempt.
type Relay struct {
	cfg Config

	mu         sync.Mutex // guards the fields below
	capability string
	slice      Slice
	changed    chan struct{} // closed and replaced when another slice comes
	short      bool          // the last answer asked for another slice
	current    *call         // the open one
	fetches    map[*call]struct{}
	closed     error
	suspended  bool // no authority now
}

// call is one model call or package request, from its admission until its answer
// is whole.
type call struct{ cancel context.CancelCauseFunc }

// New makes a relay that admits nothing until it has a capability.
func New(cfg Config) *Relay {
	return &Relay{cfg: cfg, changed: make(chan struct{}), fetches: map[*call]struct{}{}}
}

// Refresh replaces the capability, and the slice that it carries, for the calls to
// come and for one that waits.
func (r *Relay) Refresh(capability string, s Slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	another := s.ID != r.slice.ID || s.Ceiling != r.slice.Ceiling || s.Whole != r.slice.Whole
	r.capability, r.slice = capability, s
	if another {
		// The wish that this slice fulfils ends before a call can wake and utter the next.
		r.wantsLocked(false)
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// wants notes whether another slice is asked for, and tells changes.
func (r *Relay) wants(short bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wantsLocked(short)
}

// wish asks for another slice where the one in force lacks something: in one step, so
// that a wish is not uttered after the slice that fulfils it. changed is closed when
// another comes.
func (r *Relay) wish(lacks func(now Slice) bool) (now Slice, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if lacks(r.slice) {
		r.wantsLocked(true)
	}
	return r.slice, r.changed
}

func (r *Relay) wantsLocked(short bool) {
	changed := r.short != short
	r.short = short
	if changed && r.cfg.ShortFunc != nil {
		r.cfg.ShortFunc(short)
	}
}

// Close ends what is open and refuses others, both with cause. The first cause stays.
func (r *Relay) Close(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed != nil {
		return
	}
	r.closed, r.capability = cause, ""
	r.breakLocked(cause)
}

// Suspend ends what is open and refuses others with ErrNoAuthority, until Resume.
func (r *Relay) Suspend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.suspended = true
	r.breakLocked(ErrNoAuthority)
}

// breakLocked ends what is open.
func (r *Relay) breakLocked(cause error) {
	if r.current != nil {
		r.current.cancel(cause)
	}
	for f := range r.fetches {
		f.cancel(cause)
	}
}

// Resume admits calls again, if the lease does.
func (r *Relay) Resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.suspended = false
}

// CallModel makes one call and passes each event to send as it comes. Its error
// has a code of the table.
func (r *Relay) CallModel(ctx context.Context, req *runtimev1.ModelRequest, send func(*runtimev1.ModelResponse) error) error {
	if req.GetModel() != r.cfg.Model {
		return protocol.Errorf(protocol.CodePolicyDenied, "this attempt may call the model %q, not %q", r.cfg.Model, req.GetModel())
	}
	ctx, one, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer one.cancel(nil)
	defer r.done(one)
	for {
		capability, used, err := r.authority()
		if err != nil {
			return err
		}
		err = r.stream(ctx, one, capability, req, send)
		switch code := protocol.CodeOf(err); {
		case err == nil:
			r.wants(false)
			return nil
		case ofAnotherBoot(err) && used.ID != "" && ctx.Err() == nil:
			if err := r.newer(ctx, used, err); err != nil {
				return err
			}
			continue
		case code == protocol.CodeUnavailable:
			// The broker may have restarted: whoever asks again does so under a new slice.
			r.wants(ctx.Err() == nil)
			return err
		case code != protocol.CodeBudgetExhausted || used.ID == "" || ctx.Err() != nil:
			r.wants(false)
			return err
		}
		if err := r.larger(ctx, used, err); err != nil {
			r.wants(false)
			return err
		}
	}
}

// ofAnotherBoot reports that the slice was cut for another start of the broker.
func ofAnotherBoot(err error) bool { return protocol.DetailOf(err) == protocol.DetailSliceBoot }

// newer waits until the next slice has come. The server cuts one for each start of
// the broker, so a call is made again once for each. What comes too late is left to
// the next try, and is asked for until it comes.
func (r *Relay) newer(ctx context.Context, used Slice, refusal error) error {
	now, changed := r.wish(func(now Slice) bool { return now.ID == used.ID })
	if now.ID != used.ID {
		return nil
	}
	return r.await(ctx, changed, func() error { return r.newer(ctx, used, refusal) }, refusal)
}

// largerIn is how long a call waits for a larger slice, or the next.
const largerIn = 10 * time.Second

// larger waits until another slice has come than the one that was too small. The
// refusal of a whole one stays. INV-19.
func (r *Relay) larger(ctx context.Context, used Slice, refusal error) error {
	same := func(now Slice) bool { return now.ID == used.ID && now.Ceiling == used.Ceiling }
	now, changed := r.wish(func(now Slice) bool { return same(now) && !now.Whole })
	switch {
	case !same(now):
		return nil
	case now.Whole:
		return refusal
	}
	return r.await(ctx, changed, func() error { return r.larger(ctx, used, refusal) }, refusal)
}

// await another slice, and look at it.
func (r *Relay) await(ctx context.Context, changed <-chan struct{}, look func() error, refusal error) error {
	patience := time.NewTimer(largerIn)
	defer patience.Stop()
	select {
	case <-changed:
		return look()
	case <-ctx.Done():
		return failure(ctx, context.Cause(ctx))
	case <-patience.C:
		return protocol.Errorf(protocol.CodeUnavailable, "the server gave no other budget slice in time: %w", refusal)
	}
}

// stream makes the call once.
func (r *Relay) stream(ctx context.Context, one *call, capability string, req *runtimev1.ModelRequest, send func(*runtimev1.ModelResponse) error) error {
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

// open makes room for one call.
func (r *Relay) open(ctx context.Context) (context.Context, *call, error) {
	if _, _, err := r.authority(); err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		return nil, nil, protocol.Errorf(protocol.CodeFailedPrecondition, "a model call of this attempt is still open")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r.current = &call{cancel}
	switch {
	case r.closed != nil:
		cancel(r.closed)
	case r.suspended:
		cancel(ErrNoAuthority)
	}
	return ctx, r.current, nil
}

// authority is asked right before a call leaves. INV-20.
func (r *Relay) authority() (capability string, s Slice, err error) {
	left := r.cfg.Lease.Authority() // outside of the lock: it has its own
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed != nil:
		return "", s, r.closed
	case left <= 0, r.suspended:
		return "", s, ErrNoAuthority
	case r.capability == "":
		return "", s, protocol.Errorf(protocol.CodeUnavailable, "the lease brought no capability for the broker yet")
	}
	return r.capability, r.slice, nil
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
