package edge

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// attempt is one claimed attempt of this machine, from its claim until the
// server accepted its result or has lost it.
type attempt struct {
	id    protocol.AttemptID
	kind  string
	fence protocol.Fence
	lease *lease.Lease

	// seq is the newest journal record that the daemon knows of.
	seq atomic.Int64
	// ended is set when the result is journalled: nothing is left to cut.
	ended atomic.Bool
	// freed is set when its slot may be given away though it has not ended.
	freed atomic.Bool
	// lost is set when the server may give the work to another: no result of ours
	// counts any more.
	lost atomic.Bool
	// judged is set once the server gave terms to this daemon.
	judged atomic.Bool
	// holds: its supervisor freezes it while it has no authority, and thaws it.
	holds atomic.Bool
	// short: a model call waits for other terms.
	short atomic.Bool
	// cut says why the attempt may not act any more.
	cut atomic.Pointer[protocol.Error]
}

// over: nothing can bring its authority back. One that is held has until the end
// of its retention. INV-20.
func (a *attempt) over() bool {
	return a.lease.Authority() <= 0 && (!a.holds.Load() || a.lease.Retention() <= 0)
}

// permit is asked right before an effect. INV-20.
func (a *attempt) permit() error {
	if e := a.cut.Load(); e != nil {
		return e
	}
	if a.lease.Authority() <= 0 {
		return protocol.Errorf(protocol.CodeLeaseExpired, "the server did not renew the lease of attempt %s in time: nothing is done any more", a.id)
	}
	return nil
}

// grant takes new terms that came in answer to a request sent at sent.
func (a *attempt) grant(sent time.Duration, terms *runnerv1.LeaseTerms) {
	a.judged.Store(true)
	a.lease.Renew(sent, time.Duration(terms.GetAuthorityTtlMs())*time.Millisecond, time.Duration(terms.GetRetentionMs())*time.Millisecond)
}

// remaining are terms as they stand now, for a supervisor that counts from when
// it gets them.
func (a *attempt) remaining(terms *runnerv1.LeaseTerms) *runnerv1.LeaseTerms {
	return &runnerv1.LeaseTerms{
		Fence:          int64(a.fence),
		AuthorityTtlMs: max(0, a.lease.Authority().Milliseconds()),
		RetentionMs:    max(0, a.lease.Retention().Milliseconds()),
		Capability:     terms.GetCapability(),
		Slice:          terms.GetSlice(),
	}
}

// byAttempt holds one thing for each attempt of this machine.
type byAttempt[T any] struct {
	mu sync.Mutex // guards by
	by map[protocol.AttemptID]T
}

func (m *byAttempt[T]) put(id protocol.AttemptID, one T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.by == nil {
		m.by = map[protocol.AttemptID]T{}
	}
	m.by[id] = one
}

// get is the zero T for an attempt that is not here.
func (m *byAttempt[T]) get(id protocol.AttemptID) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.by[id]
}

func (m *byAttempt[T]) remove(id protocol.AttemptID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.by, id)
}

// all in a stable order.
func (m *byAttempt[T]) all() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]T, 0, len(m.by))
	for _, id := range slices.Sorted(maps.Keys(m.by)) {
		out = append(out, m.by[id])
	}
	return out
}

// table holds the attempts of this machine.
type table struct{ byAttempt[*attempt] }

func (t *table) add(a *attempt) { t.put(a.id, a) }

// active counts attempts of a kind that have not ended.
func (t *table) active(kind string) (n int) {
	for _, a := range t.all() {
		if a.kind == kind && !a.ended.Load() && !a.freed.Load() {
			n++
		}
	}
	return n
}

// held is what the server is told of on every connect and renewal. What was lost
// is not asked for again: its clock runs out there, and the work goes on elsewhere.
func held(all []*attempt) []*runnerv1.HeldLease {
	out := make([]*runnerv1.HeldLease, 0, len(all))
	for _, a := range all {
		if a.lost.Load() {
			continue
		}
		out = append(out, &runnerv1.HeldLease{AttemptId: a.id.String(), Fence: int64(a.fence), JournalSeq: a.seq.Load(), Short: a.short.Load()})
	}
	return out
}
