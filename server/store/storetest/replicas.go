package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/store"
)

var replicaProbes = map[string]probe{
	"EnterReplica": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.EnterReplica(execution.Replica{ID: x.Replica, Boot: "boot"}))
	}},
	"BeatReplica": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		if err := tx.EnterReplica(execution.Replica{ID: x.Replica, Boot: "boot"}); err != nil {
			return false, err
		}
		return did(tx.BeatReplica(x.Replica, "boot"))
	}},
	"ForgetReplica": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.ForgetReplica(execution.Replica{ID: x.Replica, Boot: "boot"}, 0))
	}},
	"Replicas": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Replicas()) }},
	"Replica": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		if err := tx.EnterReplica(execution.Replica{ID: x.Replica, Boot: "boot"}); err != nil {
			return false, err
		}
		return got(tx.Replica(x.Replica))
	}},
	"TakeLead": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return got(tx.TakeLead("of "+x.Name, x.Replica, 0))
	}},
	"Lead": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		if _, err := tx.TakeLead("of "+x.Name, x.Replica, 0); err != nil {
			return false, err
		}
		return got(tx.Lead("of " + x.Name))
	}},
	"Leads": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		l, err := tx.TakeLead("of "+x.Name, x.Replica, 0)
		if err != nil {
			return false, err
		}
		return did(tx.Leads(l.Name, l.Fence))
	}},
	"PutStatements": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.PutStatements([]execution.Statement{{JWS: "jws of " + x.Name, Replica: x.Replica, EndsAt: tx.Now.Add(time.Hour)}}))
	}},
	"Rewound": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		_, _, err := tx.Rewound(0)
		return err == nil, err
	}},
	"Settled":    {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.Settled()) }},
	"Statements": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.Statements()) }},
}

// replicas: a beat is its process's alone; a second one under the name takes over.
func replicas(t *testing.T, s *store.Store) {
	a := execution.Replica{ID: id[protocol.ReplicaID](), Boot: "first", Blobs: "here"}
	again := a
	again.Boot = "second"
	beat := func(r execution.Replica) error {
		return attempt(s, func(tx *store.Tx) error { return tx.BeatReplica(r.ID, r.Boot) })
	}
	wantCode(t, "a beat before it entered", beat(a), protocol.CodeStaleFence)
	update(t, s, loop, func(tx *store.Tx) error { return tx.EnterReplica(a) })
	if err := beat(a); err != nil {
		t.Error(err)
	}
	update(t, s, loop, func(tx *store.Tx) error { return tx.EnterReplica(again) })
	wantCode(t, "a beat of the earlier process", beat(a), protocol.CodeStaleFence)
	if err := beat(again); err != nil {
		t.Error(err)
	}
	read := func() (got execution.Replica, err error) {
		err = attempt(s, func(tx *store.Tx) (err error) { got, err = tx.Replica(a.ID); return err })
		return got, err
	}
	got, err := read()
	if err != nil || got.Boot != "second" || got.Beat != 4 || got.Blobs != "here" || got.StartedAt.IsZero() {
		t.Errorf("%+v, %v", got, err)
	}
	// Whoever forgets one that lives again is too late.
	update(t, s, loop, func(tx *store.Tx) error { return tx.ForgetReplica(got, got.Beat-1) })
	if _, err := read(); err != nil {
		t.Errorf("a living replica was forgotten: %v", err)
	}
	update(t, s, loop, func(tx *store.Tx) error { return tx.ForgetReplica(got, got.Beat) })
	_, err = read()
	wantCode(t, "a forgotten replica", err, protocol.CodeNotFound)
}

// lead: one holder at a time, by compare-and-set, each under a higher fence. INV-3.
func lead(t *testing.T, s *store.Store) {
	a, b := id[protocol.ReplicaID](), id[protocol.ReplicaID]()
	take := func(r protocol.ReplicaID, last protocol.Fence) (l execution.Lead, err error) {
		err = attempt(s, func(tx *store.Tx) (err error) { l, err = tx.TakeLead("ticks", r, last); return err })
		return l, err
	}
	first, err := take(a, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = take(b, 0)
	wantCode(t, "a second first holder", err, protocol.CodeConflict)
	second, err := take(b, first.Fence)
	if err != nil || second.Fence <= first.Fence || second.Replica != b {
		t.Errorf("%+v after %+v: %v", second, first, err)
	}
	_, err = take(a, first.Fence)
	wantCode(t, "a holder that read too early", err, protocol.CodeConflict)
	view(t, s, loop, func(tx *store.Tx) error {
		wantCode(t, "the earlier holder", tx.Leads("ticks", first.Fence), protocol.CodeStaleFence)
		return tx.Leads("ticks", second.Fence)
	})
}

// signing: statements of all replicas are read until they end.
func signing(t *testing.T, s *store.Store) {
	a, b := id[protocol.ReplicaID](), id[protocol.ReplicaID]()
	update(t, s, loop, func(tx *store.Tx) error {
		return errors.Join(
			tx.PutStatements([]execution.Statement{{JWS: "a", Replica: a, EndsAt: tx.Now.Add(time.Hour)}, {JWS: "over", Replica: a, EndsAt: tx.Now.Add(-time.Second)}}),
			tx.PutStatements([]execution.Statement{{JWS: "b", Replica: b, EndsAt: tx.Now.Add(2 * time.Hour)}, {JWS: "a", Replica: a, EndsAt: tx.Now.Add(time.Hour)}}),
		)
	})
	view(t, s, loop, func(tx *store.Tx) error {
		all, err := tx.Statements()
		var names []string
		for _, s := range all {
			names = append(names, s.JWS)
		}
		if !slices.Equal(names, []string{"b", "a"}) {
			t.Errorf("in force: %v", names)
		}
		return err
	})
}
