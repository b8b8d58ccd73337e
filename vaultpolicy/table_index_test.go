package vaultpolicy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
)

// Whatever happens to grants, in whatever order, the indexes say what a look at all of
// them would: who lives on an entity, and whether the hash of every living one is known.
func TestIndexesAreTrue(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		tab := newTable(func() time.Duration { return time.Minute }, time.Minute)
		early, late := newAccessors(), newAccessors()
		tab.tells(early)
		id := func() protocol.GrantID { return protocol.GrantID(fmt.Sprint("grt_", r.IntN(8))) }
		text := func(kind string) string { return fmt.Sprint(kind, r.IntN(4)) }
		for i := range 400 {
			g := id()
			e := entry{grant: authority.Grant{ID: g}, accessor: g.String() + text("-acc-"), entity: text("ent-")}
			switch r.IntN(9) {
			case 0:
				tab.made(e)
			case 1:
				tab.put(e)
			case 2:
				tab.prove(g, 1, text("ent-"), term{})
			case 3:
				if r.IntN(4) == 0 {
					tab.end(g, time.Now(), "")
				}
			case 4:
				if r.IntN(4) == 0 {
					tab.forget(g)
				}
			case 5:
				tab.replaced(g, e.accessor, "rot")
			default:
				if x, ok := tab.get(g); ok {
					for _, a := range []*accessors{early, late} {
						request := fmt.Sprint("r", i)
						a.line(request, fmt.Sprint("hash-", r.IntN(40)/39, x.accessor)) // now and then by a device that hashes anew
						a.answer(request, answered{g, x.accessor})
					}
				}
			}
			if i == 100 {
				tab.tells(late)
			}
			check := []*accessors{early}
			if i >= 100 {
				check = append(check, late)
			}
			compareIndexes(t, tab, check)
		}
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

func compareIndexes(t *testing.T, tab *table, all []*accessors) {
	t.Helper()
	people, known := map[string][]protocol.GrantID{}, make([]bool, len(all))
	for i, a := range all {
		known[i] = true
		for id, e := range tab.grants {
			if e.grant.RevokedAt.IsZero() && !slices.ContainsFunc(a.written[id], func(w accessorsOf) bool { return w.accessor == e.accessor }) {
				known[i] = false
			}
		}
		if a.complete() != known[i] {
			t.Errorf("index %d says that all are known: %v, and they are: %v", i, a.complete(), known[i])
		}
	}
	for id, e := range tab.grants {
		if e.grant.RevokedAt.IsZero() && e.entity != "" {
			people[e.entity] = append(people[e.entity], id)
		}
	}
	for entity, want := range people {
		got := tab.ofEntity(entity)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("on %s live %v, and the index says %v", entity, want, got)
		}
	}
	if len(tab.people) != len(people) {
		t.Errorf("the index has %d entities, not %d", len(tab.people), len(people))
	}
}
