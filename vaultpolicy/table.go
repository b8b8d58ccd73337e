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

const (
	// inUse is how long after a question a grant is looked up every poll.
	inUse = 60 * time.Second
	// sweep is how often grants that nobody uses are looked up, and the index is read.
	sweep = 30 * time.Second
	// revokedTTL is how long a grant that ended stays listed.
	revokedTTL = 90 * 24 * time.Hour
)

// entry is one grant in memory. A grant that has RevokedAt ended; nothing brings it
// back.
type entry struct {
	grant    authority.Grant
	accessor string
	how      string // it ended

	inForce   authority.Rotation // whose secret part is in force; empty: the first
	pending   secretPart         // that is made and not in force
	renewedAt time.Time          // when the token took another's place here

	// Readings of the table's clock; zero: never.
	asked  time.Duration // last question about it
	used   time.Duration // since when questions come without a pause
	proven time.Duration // when the last look-up was sent that found it alive
	tried  time.Duration // last look-up, whatever it found
	fixed  time.Duration // last renewal, where it did not move the token's end
	read   time.Duration // last reading of its entry for itself

	entity  string
	expires time.Time // as of the last look-up
	cut     bool      // that saw a token whose end was moved to now: it was revoked

	own        bool // the accessor is known to be of this grant's token
	unfinished bool // ended here, perhaps not yet in the server
	settled    bool // what can be done about its token was done
	told       bool // somebody was told that it ended
	reopened   int  // how often the server has lost its end
}

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
}

func newTable(clock lease.Elapsed, grace time.Duration) *table {
	return &table{clock: clock, grace: grace, grants: map[protocol.GrantID]*entry{}, unknown: map[protocol.GrantID]time.Duration{}}
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

// whyLocked is the end of a sentence about silence.
func (t *table) whyLocked() string {
	if t.silence == nil {
		return ""
	}
	return ": " + t.silence.Error()
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
	t.grants[e.grant.ID] = &entry{grant: e.grant, accessor: e.accessor, how: e.how, unfinished: e.unfinished, inForce: e.inForce, pending: e.pending, read: t.now()}
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
		old.grant, old.proven, old.entity = e.grant, t.now(), e.entity
	}
}

// end says that a grant is over. first is false where that was known.
func (t *table) end(id protocol.GrantID, at time.Time, how string) (e entry, first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.grants[id]
	if x == nil {
		return entry{}, false
	}
	if first = x.grant.RevokedAt.IsZero(); first {
		x.grant.RevokedAt, x.how, x.unfinished = at, how, true
	}
	return *x, first
}

// finished says that the server knows of an end too, unless it has lost it since x was
// looked at.
func (t *table) finished(x entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.grants[x.grant.ID]; e != nil && e.reopened == x.reopened {
		e.unfinished = false
	}
}

// reopen says that the server has lost an end which it held. false: it is being told
// already, or the grant lives.
func (t *table) reopen(id protocol.GrantID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.grants[id]
	if e == nil || e.grant.RevokedAt.IsZero() || e.unfinished {
		return false
	}
	e.unfinished, e.settled, e.reopened = true, false, e.reopened+1
	return true
}

// owns says whether the accessor of a grant is of the grant's own token.
func (t *table) owns(id protocol.GrantID, own bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.grants[id]; e != nil {
		e.own = own
	}
}

// settle says that what can be done about the token of a grant was done, since x was
// looked at.
func (t *table) settle(x entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.grants[x.grant.ID]; e != nil && e.reopened == x.reopened {
		e.settled = true
	}
}

// prove takes the answer of a look-up that was sent at a reading of the clock.
func (t *table) prove(id protocol.GrantID, sent time.Duration, entity string, x term) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.grants[id]; e != nil {
		e.cut = e.cut && x.over || x.early(e.expires)
		e.proven, e.entity, e.expires = max(e.proven, sent), entity, x.ends
	}
}

// lengthened says whether a renewal moved the end of a grant's token.
func (t *table) lengthened(id protocol.GrantID, moved bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.grants[id]; e != nil {
		if e.fixed = t.now(); moved {
			e.fixed = 0
		}
	}
}

// futile reports that a renewal did nothing a short time ago.
func (t *table) futile(id protocol.GrantID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.grants[id]
	return e != nil && e.fixed > 0 && t.now()-e.fixed < sweep
}

// hear says that the server answered a question about the broker itself.
func (t *table) hear(sent time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard, t.silence = max(t.heard, sent), nil
}

// heardWithin reports that the server answered such a question a short time ago, and
// was not silent since.
func (t *table) heardWithin(d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.silence == nil && t.heard > 0 && t.now()-t.heard <= d
}

// silent keeps the reason for the words of alive.
func (t *table) silent(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.silence = err
}

// whole says that the index was read whole, from a reading of the clock on.
func (t *table) whole(started time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listed = true
	for id, asked := range t.unknown {
		if asked > 0 && asked <= started {
			t.unknown[id] = -1 // it was looked for
		} else if asked < 0 {
			delete(t.unknown, id) // and may be looked for again
		}
	}
}

// entryDue reports that the entry of a grant in use is to be read now, and takes it as
// read: every is the time between.
func (t *table) entryDue(id protocol.GrantID, every time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, now := t.grants[id], t.now()
	if e == nil || !e.grant.RevokedAt.IsZero() || e.asked == 0 || now-e.asked > inUse || now-e.read < every {
		return false
	}
	e.read = now
	return true
}

// inUse are the grants in use, which are looked up in every round: those that were not
// proven for longest come first.
func (t *table) inUse() []entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	var used []*entry
	for _, e := range t.grants {
		if e.grant.RevokedAt.IsZero() && e.asked > 0 && t.now()-e.asked <= inUse {
			used = append(used, e)
		}
	}
	slices.SortFunc(used, func(a, b *entry) int { return cmp.Compare(a.proven, b.proven) })
	return copies(used)
}

// idle are the grants to look up now of those that nobody uses. fresh were never looked
// up, or their time is over by this machine's clock; of the others some, longest not
// tried first, or all.
func (t *table) idle(all bool) (fresh, others []entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	var first, then []*entry
	for _, e := range t.grants {
		switch {
		case !e.grant.RevokedAt.IsZero(), e.asked > 0 && now-e.asked <= inUse:
		case e.tried == 0, overdue(e):
			first = append(first, e)
		case all || now-e.tried >= sweep:
			then = append(then, e)
		}
	}
	slices.SortFunc(then, func(a, b *entry) int { return cmp.Compare(a.tried, b.tried) })
	if most := len(t.grants)/8 + 16; !all && len(then) > most {
		then = then[:most]
	}
	return copies(first), copies(then)
}

func copies(all []*entry) []entry {
	out := make([]entry, len(all))
	for i, e := range all {
		out[i] = *e
	}
	return out
}

// try notes that a grant is looked up now. false: somebody else did since e was taken.
func (t *table) try(e entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.grants[e.grant.ID]
	if x == nil || x.tried != e.tried {
		return false
	}
	x.tried = t.now()
	return true
}

// lives reports a grant that did not end.
func (t *table) lives(id protocol.GrantID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.grants[id]
	return e != nil && e.grant.RevokedAt.IsZero()
}

// living are the grants that did not end, with their tokens.
func (t *table) living() (out []answered) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.grants {
		if e.grant.RevokedAt.IsZero() {
			out = append(out, answered{id, e.accessor})
		}
	}
	return out
}

// ofEntity are the living grants that hang on an entity, as of their last look-up.
func (t *table) ofEntity(entity string) (out []protocol.GrantID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.grants {
		if entity != "" && e.entity == entity && e.grant.RevokedAt.IsZero() {
			out = append(out, id)
		}
	}
	return out
}

func overdue(e *entry) bool { return !e.expires.IsZero() && !time.Now().Before(e.expires) }

// untold are the grants that ended and of which nobody was told, and takes them as
// told. Those that this broker revoked itself are in it when it starts only.
func (t *table) untold() (out []authority.Ended) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.grants {
		if e.grant.RevokedAt.IsZero() || e.told {
			continue
		}
		e.told = true
		how := e.how
		if how == "" {
			how = "it was revoked"
		}
		out = append(out, authority.Ended{Grant: id, At: e.grant.RevokedAt, How: how})
	}
	slices.SortFunc(out, func(a, b authority.Ended) int { return a.At.Compare(b.At) })
	return out
}

// knows says that somebody was told of an end otherwise.
func (t *table) knows(id protocol.GrantID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.grants[id]; e != nil {
		e.told = true
	}
}

// unfinished are the grants whose end the server may not know.
func (t *table) unfinished() (out []entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.grants {
		if e.unfinished {
			out = append(out, *e)
		}
	}
	return out
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
	delete(t.grants, id)
}
