package vaultpolicy

import (
	"maps"
	"slices"

	"bivouac/edge/protocol"
)

// A line of an audit names a token or a person. Whose it is is found by index: servers
// write many lines that are about nobody's grant, and each under the table's lock.

// tells one more of the grants that live, from now on.
func (t *table) tells(a *accessors) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.audits = append(t.audits, a)
	for id, e := range t.grants {
		if e.grant.RevokedAt.IsZero() {
			a.lives(answered{id, e.accessor})
		}
	}
}

// indexLocked takes a grant, with the accessor that it has now.
func (t *table) indexLocked(e *entry) {
	if !e.grant.RevokedAt.IsZero() {
		return
	}
	for _, a := range t.audits {
		a.lives(answered{e.grant.ID, e.accessor})
	}
}

// unindexLocked takes a grant out that ended, or that is forgotten.
func (t *table) unindexLocked(e *entry) {
	for _, a := range t.audits {
		a.over(e.grant.ID)
	}
	t.leavesLocked(e)
}

func (t *table) leavesLocked(e *entry) {
	delete(t.people[e.entity], e.grant.ID)
	if len(t.people[e.entity]) == 0 {
		delete(t.people, e.entity)
	}
}

// hangsLocked says on which entity the token of a grant hangs.
func (t *table) hangsLocked(e *entry, entity string) {
	if e.entity != entity {
		t.leavesLocked(e)
	}
	e.entity = entity
	if entity == "" || !e.grant.RevokedAt.IsZero() {
		return
	}
	if t.people[entity] == nil {
		t.people[entity] = map[protocol.GrantID]bool{}
	}
	t.people[entity][e.grant.ID] = true
}

// ofEntity are the living grants that hang on an entity, as of their last look-up.
func (t *table) ofEntity(entity string) []protocol.GrantID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.people[entity]))
}
