package vaultpolicy

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
)

// table is what is known of grants, so that Alive never waits.
type table struct {
	clock lease.Elapsed
	grace time.Duration

	mu     sync.Mutex
	grants map[protocol.GrantID]*entry
	listed bool          // the index was read whole, once
	heard  time.Duration // when the server last said that the broker is who it is
	// unknown are grants that were asked for and are in no index that was read so far.
	unknown map[protocol.GrantID]time.Duration
	silence error // why heard does not move
	// Indexes: grants that live by the entity that their tokens hang on, and who knows
	// grants by what an audit writes. Their own locks are taken after this one.
	people map[string]map[protocol.GrantID]bool
	audits []*accessors
}

func newTable(clock lease.Elapsed, grace time.Duration) *table {
	return &table{clock: clock, grace: grace, grants: map[protocol.GrantID]*entry{}, unknown: map[protocol.GrantID]time.Duration{},
		people: map[string]map[protocol.GrantID]bool{}}
}

// now is never zero, so that zero can mean never.
func (t *table) now() time.Duration { return max(t.clock(), 1) }

// hint is what an answer of alive wants to happen.
type hint int

const (
	nothing hint = iota
	lookNow      // it comes into use: look it up now
	listNow      // it is in no index that was read: read it again
)

// alive answers from memory and marks the grant as in use.
func (t *table) alive(id protocol.GrantID) (hint, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	e := t.grants[id]
	if e == nil {
		return t.missingLocked(id, now)
	}
	if !e.grant.RevokedAt.IsZero() {
		return nothing, ended(e)
	}
	h := nothing
	if e.asked == 0 || now-e.asked > inUse {
		e.used, h = now, lookNow
	}
	e.asked = now
	switch {
	case e.proven == 0:
		if e.tried == 0 || now-e.tried > failedAgain {
			h = lookNow
		}
		return h, unavailable("grant %s was not looked up yet", id)
	case now-t.heard > t.grace:
		return h, unavailable("the server that holds the grants is silent for more than %s%s", t.grace, t.whyLocked())
	case now-max(e.proven, e.used) > t.grace:
		return h, unavailable("the server did not say for more than %s whether grant %s lives", t.grace, id)
	}
	return h, nil
}

// missingLocked answers about a grant that is not in memory: another broker may have
// made it since the index was read.
func (t *table) missingLocked(id protocol.GrantID, now time.Duration) (hint, error) {
	asked, before := t.unknown[id]
	switch {
	case !t.listed:
		return nothing, unavailable("the index of grants was not read yet%s", t.whyLocked())
	case !before:
		if len(t.unknown) >= maxUnknown {
			clear(t.unknown)
		}
		t.unknown[id] = now
		return listNow, unavailable("grant %s is being looked for", id)
	case asked > 0:
		return listNow, unavailable("grant %s is being looked for", id)
	}
	return nothing, denied("grant %s is not known to this broker", id)
}

// maxUnknown bounds what is remembered of grants that are nowhere.
const maxUnknown = 1024

func ended(e *entry) error {
	return authority.Revoked(e.grant.ID, e.how)
}

func unavailable(format string, args ...any) error {
	e := protocol.Errorf(protocol.CodeUnavailable, format, args...)
	e.RetryAfter = time.Second
	return e
}

func denied(format string, args ...any) error {
	return protocol.Errorf(protocol.CodePermissionDenied, format, args...)
}

// get a copy of an entry.
func (t *table) get(id protocol.GrantID) (entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.grants[id]; e != nil {
		return *e, true
	}
	return entry{}, false
}

// put takes what the index says of a grant that is not known. false: it is known, and
// stays as it is.
func (t *table) put(e entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.unknown, e.grant.ID)
	if t.grants[e.grant.ID] != nil {
		return false
	}
	x := &entry{grant: e.grant, accessor: e.accessor, how: e.how, unfinished: e.unfinished, inForce: e.inForce, pending: e.pending, read: t.now()}
	t.grants[e.grant.ID] = x
	t.indexLocked(x)
	return true
}

// made takes a grant that this broker has just made, whose making proves it. What
// ended stays ended.
func (t *table) made(e entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.unknown, e.grant.ID)
	old := t.grants[e.grant.ID]
	if old == nil {
		old = &entry{grant: e.grant}
		t.grants[e.grant.ID] = old
	}
	old.accessor, old.own = e.accessor, true
	if old.grant.RevokedAt.IsZero() {
		old.grant, old.proven = e.grant, t.now()
		t.hangsLocked(old, e.entity)
	}
	t.indexLocked(old)
}

// of a tenant, oldest first.
func (t *table) of(tenant protocol.TenantID) (out []authority.Grant, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.listed {
		return nil, unavailable("the index of grants was not read yet%s", t.whyLocked())
	}
	for _, e := range t.grants {
		if e.grant.Tenant == tenant {
			g := e.grant
			g.Credentials = slices.Clone(g.Credentials)
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b authority.Grant) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// unseen are the living grants that a reading of the whole index did not find.
func (t *table) unseen(seen map[protocol.GrantID]bool) (out []entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.grants {
		if !seen[id] && e.grant.RevokedAt.IsZero() {
			out = append(out, *e)
		}
	}
	return out
}

// forget a grant that ended long ago.
func (t *table) forget(id protocol.GrantID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.grants[id]; e != nil {
		t.unindexLocked(e)
		delete(t.grants, id)
	}
}
