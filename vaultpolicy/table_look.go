package vaultpolicy

import (
	"cmp"
	"slices"
	"time"

	"bivouac/edge/protocol"
)

// prove takes the answer of a look-up that was sent at a reading of the clock.
func (t *table) prove(id protocol.GrantID, sent time.Duration, entity string, x term) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.grants[id]; e != nil {
		e.cut = e.cut && x.over || x.early(e.expires)
		e.proven, e.expires = max(e.proven, sent), x.ends
		t.hangsLocked(e, entity)
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
