package vaultpolicy

import (
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
)

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
		t.unindexLocked(x)
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
