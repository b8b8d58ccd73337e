package broker

import (
	"context"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/capability"
)

// flow is one admitted request for as long as it runs.
type flow struct {
	req    *request
	cancel context.CancelCauseFunc
}

// flows are the open ones. Registering comes before the checks of admission, so
// that a revocation finds either the flow or the new floor, never neither. INV-13.
type flows struct {
	mu       sync.Mutex // guards below
	open     map[*flow]struct{}
	admitted map[protocol.GrantID]time.Time // last admission under a grant
	changed  chan struct{}                  // closed and replaced when a flow ends
}

func newFlows() *flows {
	return &flows{open: map[*flow]struct{}{}, admitted: map[protocol.GrantID]time.Time{}, changed: make(chan struct{})}
}

// begin registers a request; its context ends with a cause when it is closed.
func (f *flows) begin(ctx context.Context, r *request) (context.Context, *flow) {
	ctx, cancel := context.WithCancelCause(ctx)
	r.caller = callerFrom(ctx)
	fl := &flow{req: r, cancel: cancel}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[fl] = struct{}{}
	return ctx, fl
}

// claimed tells the registry what the capability says, once it is verified.
func (f *flows) claimed(fl *flow, c capability.Claims) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.req.claims = c
	fl.req.known = true
}

// admit notes the admission, unless the flow was closed meanwhile.
func (f *flows) admit(ctx context.Context, fl *flow, at time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if g := fl.req.claims.Grant; g != "" {
		f.admitted[g] = at
		f.forgetLocked(at)
	}
	return nil
}

// forgetLocked bounds the memory of admissions.
func (f *flows) forgetLocked(at time.Time) {
	if len(f.admitted) < 10_000 {
		return
	}
	for g, t := range f.admitted {
		if at.Sub(t) > 24*time.Hour {
			delete(f.admitted, g)
		}
	}
}

// carries reports an open flow of an action.
func (f *flows) carries(action string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fl := range f.open {
		if fl.req.action == action {
			return true
		}
	}
	return false
}

// end removes a flow when its work is over.
func (f *flows) end(fl *flow) {
	fl.cancel(context.Canceled)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, fl)
	close(f.changed)
	f.changed = make(chan struct{})
}

// judge closes every flow for which verdict has an error, with that cause.
// Verdicts may wait, so they are asked without the lock. A flow that is not known
// yet is about to be checked against the same facts. why is what closed one of them.
func (f *flows) judge(verdict func(*request) error) (closed int, why error) {
	f.mu.Lock()
	known := make([]*flow, 0, len(f.open))
	for fl := range f.open {
		if fl.req.known {
			known = append(known, fl)
		}
	}
	f.mu.Unlock()
	for _, fl := range known {
		if err := verdict(fl.req); err != nil {
			fl.cancel(err)
			closed, why = closed+1, err
		}
	}
	return closed, why
}

// count of flows that match, the last admission under a grant, and a channel
// that is closed when a flow ends.
func (f *flows) count(match func(*request) bool, g protocol.GrantID) (n int, last time.Time, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fl := range f.open {
		if fl.req.known && match(fl.req) {
			n++
		}
	}
	return n, f.admitted[g], f.changed
}
