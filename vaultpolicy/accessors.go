package vaultpolicy

import (
	"slices"
	"sync"

	"bivouac/edge/protocol"
)

// accessors is how an audit writes the accessors of grants down: hashed, with a key
// that the server keeps. Nobody is asked for the hash. When the broker looks a grant
// up, the audit has a line of it with the id of the request, and the answer has the
// same id: the two together say which grant a hash is of. A device that is made anew
// hashes anew, and is learned anew by the next look-ups.
//
// There is one for each source of lines. It is a hint and no proof: who is found by it
// is looked up.
type accessors struct {
	mu      sync.Mutex
	grants  map[string]protocol.GrantID        // by what the audit writes
	written map[protocol.GrantID][]accessorsOf // newest last
	living  map[protocol.GrantID]string        // accessors in force, as the table says
	missing map[protocol.GrantID]bool          // those of living that are not in written
	lines   recent[string]                     // by request, without their answer yet
	answers recent[answered]                   // by request, without their line yet
}

// accessorsOf a grant: one of its tokens, and what the audit writes for it.
type accessorsOf struct{ accessor, written string }

// answered look-up of a grant's token.
type answered struct {
	grant    protocol.GrantID
	accessor string
}

const (
	// maxUnpaired lines and answers wait for each other: others look tokens up too.
	maxUnpaired = 1024
	// eachWritten is how many tokens of one grant are remembered: the one in force, and
	// those that it took the place of, whose ends are no surprise.
	eachWritten = 3
)

func newAccessors() *accessors {
	return &accessors{grants: map[string]protocol.GrantID{}, written: map[protocol.GrantID][]accessorsOf{},
		living: map[protocol.GrantID]string{}, missing: map[protocol.GrantID]bool{}}
}

// line of a look-up was read.
func (a *accessors) line(request, written string) {
	if request == "" || written == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if x, ok := a.answers.take(request); ok {
		a.learn(x, written)
		return
	}
	a.lines.put(request, written)
}

// answer to a look-up came, which found a grant's own token.
func (a *accessors) answer(request string, x answered) {
	if request == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if written, ok := a.lines.take(request); ok {
		a.learn(x, written)
		return
	}
	a.answers.put(request, x)
}

func (a *accessors) learn(x answered, written string) {
	now := accessorsOf{x.accessor, written}
	all := a.written[x.grant]
	if slices.Contains(all, now) {
		return
	}
	if slices.ContainsFunc(all, func(w accessorsOf) bool { return w.accessor == x.accessor }) {
		// The device was made anew: what was learned of it is of no use for any grant.
		clear(a.grants)
		clear(a.written)
		for id := range a.living {
			a.missing[id] = true
		}
		all = nil
	}
	all = append(all, now)
	if len(all) > eachWritten {
		delete(a.grants, all[0].written)
		all = all[1:]
	}
	a.written[x.grant], a.grants[written] = all, x.grant
	a.sees(x.grant)
}

// sees whether the accessor in force of a grant is known as the audit writes it.
func (a *accessors) sees(id protocol.GrantID) {
	accessor, lives := a.living[id]
	if lives && !slices.ContainsFunc(a.written[id], func(w accessorsOf) bool { return w.accessor == accessor }) {
		a.missing[id] = true
	} else {
		delete(a.missing, id)
	}
}

// lives takes the accessor in force of a grant.
func (a *accessors) lives(x answered) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.living[x.grant] = x.accessor
	a.sees(x.grant)
}

// over is a grant that ended, or that is forgotten.
func (a *accessors) over(id protocol.GrantID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.living, id)
	delete(a.missing, id)
}

// forget a grant that the broker forgets.
func (a *accessors) forget(id protocol.GrantID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.written[id] {
		delete(a.grants, w.written)
	}
	delete(a.written, id)
	a.sees(id)
}

// find the grant of whose token the audit writes so.
func (a *accessors) find(written string) (protocol.GrantID, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id, ok := a.grants[written]
	return id, ok
}

// complete reports that the token of every grant that lives would be found: then one that
// is not found is none of them. It costs the same for many grants as for one.
func (a *accessors) complete() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.missing) == 0
}

// recent is a bounded map that forgets the oldest.
type recent[V any] struct {
	known map[string]V
	order []string // may name some that were taken
}

func (r *recent[V]) put(key string, v V) {
	if r.known == nil {
		r.known = map[string]V{}
	}
	if len(r.order) >= maxUnpaired {
		delete(r.known, r.order[0])
		r.order = r.order[1:]
	}
	r.known[key], r.order = v, append(r.order, key)
}

func (r *recent[V]) take(key string) (V, bool) {
	v, ok := r.known[key]
	delete(r.known, key)
	return v, ok
}
