package relay

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// broker streams one delta, waits until it is told to go on, and ends.
type broker struct {
	brokerv1connect.UnimplementedBrokerServiceHandler
	wait chan struct{}
	fail error
	// judge refuses by the capability, before fail.
	judge func(capability string) error
	gone  chan error // receives why a waiting call ended
	short bool       // ends without the whole answer

	mu   sync.Mutex
	seen []*brokerv1.CallModelRequest
}

func (b *broker) CallModel(ctx context.Context, req *brokerv1.CallModelRequest, out *connect.ServerStream[brokerv1.CallModelResponse]) error {
	b.mu.Lock()
	b.seen = append(b.seen, req)
	b.mu.Unlock()
	if b.judge != nil {
		if err := b.judge(req.GetCapability()); err != nil {
			return protocol.ToConnect(err)
		}
	}
	if b.fail != nil {
		return protocol.ToConnect(b.fail)
	}
	if err := out.Send(&brokerv1.CallModelResponse{Event: &runtimev1.ModelResponse{Kind: &runtimev1.ModelResponse_TextDelta{TextDelta: "first"}}}); err != nil {
		return err
	}
	if b.wait != nil {
		select {
		case <-b.wait:
		case <-ctx.Done():
			b.gone <- ctx.Err()
			return ctx.Err()
		}
	}
	if b.short {
		return nil
	}
	return out.Send(&brokerv1.CallModelResponse{Event: &runtimev1.ModelResponse{Kind: &runtimev1.ModelResponse_Done{Done: &runtimev1.ModelDone{}}}})
}

func (b *broker) requests() []*brokerv1.CallModelRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen
}

// rig is a relay with a lease whose clock the test turns.
type rig struct {
	*Relay
	now  time.Duration
	live []string
	said chan bool // what ShortFunc was told
}

func newRig(t *testing.T, b *broker) *rig {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(brokerv1connect.NewBrokerServiceHandler(b))
	s := httptest.NewUnstartedServer(mux)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	r := &rig{said: make(chan bool, 100)}
	l := lease.NewLease(func() time.Duration { return r.now })
	l.Renew(0, 15*time.Second, time.Minute)
	r.Relay = New(Config{Broker: Over(s.Client(), s.URL), Lease: l, Model: "main", LiveFunc: func(d string) { r.live = append(r.live, d) },
		ShortFunc: func(short bool) { r.said <- short }})
	r.Refresh("cap-1", Slice{})
	return r
}

func ask(ctx context.Context, r *rig, send func(*runtimev1.ModelResponse) error) error {
	if send == nil {
		send = func(*runtimev1.ModelResponse) error { return nil }
	}
	return r.CallModel(ctx, &runtimev1.ModelRequest{Model: "main"}, send)
}

func wantCode(t *testing.T, err error, code protocol.Code) {
	t.Helper()
	if protocol.CodeOf(err) != code {
		t.Errorf("got %v (%s), want %s", err, protocol.CodeOf(err), code)
	}
}

// The first text is passed on while the broker has not sent the next.
func TestStreamIsNotHeldBack(t *testing.T) {
	b := &broker{wait: make(chan struct{})}
	r := newRig(t, b)
	var got []*runtimev1.ModelResponse
	err := ask(t.Context(), r, func(ev *runtimev1.ModelResponse) error {
		got = append(got, ev)
		if len(got) == 1 {
			close(b.wait) // it waits for this: held back, the test would hang
		}
		return nil
	})
	if err != nil || len(got) != 2 || got[0].GetTextDelta() != "first" || got[1].GetDone() == nil {
		t.Errorf("%v, %v", got, err)
	}
	if len(r.live) != 1 || r.live[0] != "first" {
		t.Errorf("live text %q", r.live)
	}
}

// Each call has the newest capability and an id of its own.
func TestCapabilityIsRefreshed(t *testing.T) {
	b := &broker{}
	r := newRig(t, b)
	for _, c := range []string{"cap-1", "cap-2"} {
		r.Refresh(c, Slice{})
		if err := ask(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	seen := b.requests()
	if seen[0].Capability != "cap-1" || seen[1].Capability != "cap-2" || seen[0].CallId == seen[1].CallId || !strings.HasPrefix(seen[0].CallId, "cal_") {
		t.Errorf("the broker saw %v", seen)
	}
}

// INV-20: the lease's clock decides at each call, whatever timers did.
func TestNoCallWithoutAuthority(t *testing.T) {
	b := &broker{}
	r := newRig(t, b)
	r.now = 15*time.Second - 1
	if err := ask(t.Context(), r, nil); err != nil {
		t.Fatalf("with authority: %v", err)
	}
	r.now = 15 * time.Second
	wantCode(t, ask(t.Context(), r, nil), protocol.CodeLeaseExpired)
	if n := len(b.requests()); n != 1 {
		t.Errorf("%d calls reached the broker", n)
	}
}

// A worker that has the whole answer may ask again at once, before the call that
// brought it has returned; beside an open answer it may not.
func TestNextCallMayFollowTheAnswer(t *testing.T) {
	b := &broker{}
	r := newRig(t, b)
	err := ask(t.Context(), r, func(ev *runtimev1.ModelResponse) error {
		next := ask(t.Context(), r, nil)
		if ev.GetDone() == nil {
			wantCode(t, next, protocol.CodeFailedPrecondition)
			return nil
		}
		return next
	})
	if err != nil || len(b.requests()) != 2 {
		t.Errorf("%v after %d calls", err, len(b.requests()))
	}
}

func TestCloseEndsTheOpenCall(t *testing.T) {
	b := &broker{wait: make(chan struct{}), gone: make(chan error, 1)}
	r := newRig(t, b)
	err := ask(t.Context(), r, func(*runtimev1.ModelResponse) error {
		wantCode(t, ask(t.Context(), r, nil), protocol.CodeFailedPrecondition) // one call at a time
		r.Close(ErrNoAuthority)
		return nil
	})
	wantCode(t, err, protocol.CodeLeaseExpired)
	if err := <-b.gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the broker's side ended with %v", err)
	}
	r.Close(errors.New("later")) // the first cause stays
	r.Refresh("cap-3", Slice{})
	wantCode(t, ask(t.Context(), r, nil), protocol.CodeLeaseExpired)
}

func TestRefusals(t *testing.T) {
	b := &broker{}
	r := newRig(t, b)
	wantCode(t, r.CallModel(t.Context(), &runtimev1.ModelRequest{Model: "other"}, nil), protocol.CodePolicyDenied)
	r.Refresh("", Slice{})
	wantCode(t, ask(t.Context(), r, nil), protocol.CodeUnavailable)
	if n := len(b.requests()); n != 0 {
		t.Errorf("%d calls reached the broker", n)
	}
	r.Refresh("cap-1", Slice{})
	if err := ask(t.Context(), r, nil); err != nil {
		t.Errorf("the positive twin: %v", err)
	}
	for _, code := range []protocol.Code{protocol.CodeBudgetExhausted, protocol.CodeRateLimited, protocol.CodeStaleFence, protocol.CodeUnavailable} {
		b.fail = protocol.Errorf(code, "no")
		wantCode(t, ask(t.Context(), r, nil), code)
	}
	b.fail, b.short = nil, true
	wantCode(t, ask(t.Context(), r, nil), protocol.CodeUnavailable)
}

// A call for which the slice is too small waits for a larger one, and leaves under
// its capability; the refusal of a slice that is not raised any more stays. INV-19.
func TestCallWaitsForALargerSlice(t *testing.T) {
	dry := protocol.Errorf(protocol.CodeBudgetExhausted, "the slice is too small")
	b := &broker{judge: func(capability string) error {
		if capability == "large" {
			return nil
		}
		return dry
	}}
	r := newRig(t, b)
	r.Refresh("small", Slice{ID: "s", Ceiling: 10})
	done := make(chan error, 1)
	go func() { done <- ask(t.Context(), r, nil) }()
	if !<-r.said {
		t.Fatal("nobody was told that it is short")
	}
	r.Refresh("small again", Slice{ID: "s", Ceiling: 10}) // a renewal that brings nothing
	r.Refresh("large", Slice{ID: "s", Ceiling: 20})
	if err := <-done; err != nil {
		t.Errorf("after the top-up: %v", err)
	}
	if <-r.said {
		t.Error("it is short for ever")
	}
	r.Refresh("small", Slice{ID: "s", Ceiling: 20, Whole: true})
	wantCode(t, ask(t.Context(), r, nil), protocol.CodeBudgetExhausted)

	r.Refresh("small", Slice{ID: "t", Ceiling: 10})
	go func() { done <- ask(t.Context(), r, nil) }()
	<-r.said
	r.Refresh("small", Slice{ID: "t", Ceiling: 10, Whole: true}) // it turns out to be all
	wantCode(t, <-done, protocol.CodeBudgetExhausted)
}

// Who waits is ended by Close, and by the loss of authority before it leaves.
func TestWaitingCallEnds(t *testing.T) {
	b := &broker{judge: func(string) error { return protocol.Errorf(protocol.CodeBudgetExhausted, "no") }}
	r := newRig(t, b)
	r.Refresh("small", Slice{ID: "s", Ceiling: 10})
	done := make(chan error, 1)
	go func() { done <- ask(t.Context(), r, nil) }()
	<-r.said
	r.now = 15 * time.Second
	r.Refresh("other", Slice{ID: "s", Ceiling: 11})
	wantCode(t, <-done, protocol.CodeLeaseExpired)
	r.now = 0
	go func() { done <- ask(t.Context(), r, nil) }()
	for !<-r.said {
	}
	r.Close(protocol.Errorf(protocol.CodeCancelled, "stopped"))
	wantCode(t, <-done, protocol.CodeCancelled)
	if n := len(b.requests()); n != 2 {
		t.Errorf("%d calls left", n)
	}
}

// A call whose slice was cut for another start of the broker waits for the next
// slice, even where the old one was whole, and leaves again by itself: once for each
// slice. It is over when none comes in time, and the wish for one stays. INV-19.
func TestCallWaitsForTheNextSlice(t *testing.T) {
	old := protocol.Errorf(protocol.CodeUnavailable, "cut for another start")
	old.Detail = protocol.DetailSliceBoot
	b := &broker{judge: func(capability string) error {
		if capability == "of the third start" {
			return nil
		}
		return old
	}}
	r := newRig(t, b)
	r.Refresh("of the first", Slice{ID: "s", Ceiling: 10, Whole: true})
	done := make(chan error, 1)
	go func() { done <- ask(t.Context(), r, nil) }()
	if !<-r.said {
		t.Fatal("nobody was told that another is wanted")
	}
	r.Refresh("raised", Slice{ID: "s", Ceiling: 20}) // the same slice: no call leaves
	for !<-r.said {
	}
	r.Refresh("of the second", Slice{ID: "t", Ceiling: 10})
	for !<-r.said {
	}
	r.Refresh("of the third start", Slice{ID: "u", Ceiling: 10})
	if err := <-done; err != nil {
		t.Errorf("under its slice: %v", err)
	}
	if n := len(b.requests()); n != 3 {
		t.Errorf("%d calls left for three slices", n)
	}

	synctest.Test(t, func(t *testing.T) {
		wants := false
		r := New(Config{ShortFunc: func(short bool) { wants = short }})
		r.Refresh("of the first", Slice{ID: "s", Ceiling: 10})
		err := r.newer(t.Context(), Slice{ID: "s", Ceiling: 10}, old)
		if protocol.CodeOf(err) != protocol.CodeUnavailable || ofAnotherBoot(err) || !wants {
			t.Errorf("when none comes: %v, and it wants one: %t", err, wants)
		}
	})
}

// A slice that comes ends the wish for it, and never the one that the call utters when
// the new slice does not do either.
func TestWishOutlivesTheSliceThatDidNotFulfilIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wants := false
		r := New(Config{ShortFunc: func(short bool) { wants = short }})
		r.Refresh("cap", Slice{ID: "s"})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			_ = r.newer(ctx, Slice{ID: "s"}, protocol.Errorf(protocol.CodeUnavailable, "cut for another start"))
		}()
		for raised := range int64(5000) {
			r.Refresh("cap", Slice{ID: "s", Ceiling: raised + 1})
			synctest.Wait()
			if !wants {
				t.Fatalf("after %d slices the call waits, and nobody is asked for another", raised+1)
			}
		}
	})
}

// A broker that restarted is answered with a wish for a newer slice, until one came.
func TestUnavailableAsksForANewerSlice(t *testing.T) {
	b := &broker{fail: protocol.Errorf(protocol.CodeUnavailable, "cut for another start")}
	r := newRig(t, b)
	r.Refresh("old", Slice{ID: "s", Ceiling: 10})
	wantCode(t, ask(t.Context(), r, nil), protocol.CodeUnavailable)
	if !<-r.said {
		t.Error("nobody was told")
	}
	r.Refresh("new", Slice{ID: "t", Ceiling: 10})
	if <-r.said {
		t.Error("it still asks")
	}
}
