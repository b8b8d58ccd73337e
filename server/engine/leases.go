package engine

import (
	"maps"
	"sync"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/planted"
	"bivouac/server/policy"
)

// leases are the clocks of held attempts. They are memory only: renewals cost no
// write, and a server that starts, or takes a connection row over, starts all
// durations anew. Only the replica in the connection row reaps by them. INV-20.
type leases struct {
	elapsed lease.Elapsed

	mu   sync.Mutex // guards held, what it points to, and shared
	held map[protocol.AttemptID]*held
	// shared says until when the replica that a runner left may go on renewing, since
	// it has not looked at its row yet: for the rows that this process took.
	shared map[protocol.RunnerID]time.Duration
	// first is the same for rows that an earlier process of this replica took.
	first time.Duration
}

// held is one lease.
type held struct {
	clock    execution.Lease
	runner   protocol.RunnerID
	fence    protocol.Fence
	session  protocol.SessionID
	accepted int64
	// authority of the capability that each renewal brings; nil for a device
	// action, which needs none.
	authority *authority
	// short: its runner waits for a larger or a newer slice.
	short bool
	// unsure: what a report changed may be committed or not; the reap tick reads.
	unsure bool
}

func newLeases(e lease.Elapsed, left time.Duration) *leases {
	if planted.Chosen == planted.Clock {
		began := time.Now()
		e = func() time.Duration { return time.Since(began) }
	}
	return &leases{elapsed: e, held: map[protocol.AttemptID]*held{}, shared: map[protocol.RunnerID]time.Duration{}, first: e() + left}
}

// taken notes that the connection row of a runner is ours now. For as long as left
// says, another replica that lives may not know of it, and renews: no clock of that
// runner's leases starts before it knows. INV-20.
func (l *leases) taken(r protocol.RunnerID, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.elapsed()
	maps.DeleteFunc(l.shared, func(_ protocol.RunnerID, until time.Duration) bool { return until <= now && l.first <= now })
	l.shared[r] = now + left
}

// start starts the clock of an attempt now, or when nobody else renews it any more.
func (l *leases) start(a execution.Attempt, s protocol.SessionID, auth *authority) {
	l.mu.Lock()
	defer l.mu.Unlock()
	alone, known := l.shared[a.Runner]
	if !known {
		alone = l.first
	}
	l.held[a.ID] = &held{
		clock: execution.NewLease(a.AuthorityTTL, a.Retention, max(l.elapsed(), alone)), runner: a.Runner, fence: a.Fence,
		session: s, accepted: a.AcceptedSeq, authority: auth,
	}
}

// get returns a copy of the lease that a runner holds under a fence.
func (l *leases) get(id protocol.AttemptID, r protocol.RunnerID, f protocol.Fence) (held, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[id]
	if h == nil || h.runner != r || h.fence != f {
		return held{}, false
	}
	return *h, true
}

// renew starts the durations again, unless the lease is over.
func (l *leases) renew(id protocol.AttemptID, r protocol.RunnerID, f protocol.Fence) (held, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[id]
	now := l.elapsed()
	if h == nil || h.runner != r || h.fence != f || h.clock.State(now) == execution.LeaseOver {
		return held{}, false
	}
	h.clock = h.clock.Renewed(now)
	return *h, true
}

// state of a lease; known is false for one that this replica has no clock of.
func (l *leases) state(id protocol.AttemptID) (state execution.LeaseState, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[id]
	if h == nil || h.unsure {
		return "", false
	}
	return h.clock.State(l.elapsed()), true
}

func (l *leases) accept(id protocol.AttemptID, seq int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.held[id]; h != nil {
		h.accepted = max(h.accepted, seq)
	}
}

// useSlice makes later renewals carry a slice that was topped up or replaced.
// whole says that it is not topped up any more.
func (l *leases) useSlice(id protocol.AttemptID, s policy.Slice, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.held[id]; h != nil && h.authority != nil {
		a := *h.authority
		a.slice, a.whole = s, whole
		h.authority = &a
	}
}

// disarm makes later renewals bring no capability: the attempt is to end while a
// person decides. INV-7.
func (l *leases) disarm(id protocol.AttemptID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.held[id]; h != nil {
		h.authority = nil
	}
}

// doubt makes the reap tick read anew what an attempt may do, and gives it nothing
// meanwhile.
func (l *leases) doubt(id protocol.AttemptID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.held[id]; h != nil {
		h.authority, h.unsure = nil, true
	}
}

// short notes what a runner says of an attempt that it holds.
func (l *leases) short(id protocol.AttemptID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.held[id]; h != nil {
		h.short = true
	}
}

// takeShort returns the slices that are too small, with their turns, once.
func (l *leases) takeShort() map[protocol.SliceID]protocol.TurnID {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[protocol.SliceID]protocol.TurnID{}
	for _, h := range l.held {
		if h.short && h.authority != nil && h.authority.slice.ID != "" {
			out[h.authority.slice.ID] = h.authority.turn.ID
		}
		h.short = false
	}
	return out
}

// forgetOf drops the clocks of a runner's leases: another replica renewed them
// meanwhile, and they start anew.
func (l *leases) forgetOf(r protocol.RunnerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.held, func(_ protocol.AttemptID, h *held) bool { return h.runner == r })
}

func (l *leases) forget(id protocol.AttemptID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, id)
}

// next is how soon the first lease changes its state by time alone. One that is
// over is the reap tick's at once; it does not keep the tick awake.
func (l *leases) next() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, next := l.elapsed(), time.Hour
	for _, h := range l.held {
		if in := h.clock.NextIn(now); in > 0 {
			next = min(next, in)
		}
	}
	return next
}
