package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/execution"
)

var storeNow = define(`SELECT (SELECT value FROM meta WHERE name = 'store_epoch'), (SELECT MAX(version) FROM schema_migrations)`)

// Unaltered refuses a store that was restored, or migrated by a newer server,
// since it was opened: its fences and its tables are not those that this process
// knows.
func (tx *Tx) Unaltered() error {
	if !tx.store.Shared() {
		return nil // nobody else can have the file open
	}
	var epoch, version int64
	_, err := first(tx, func(r scanner) (bool, error) { return true, r.Scan(&epoch, &version) }, storeNow, nil)
	switch {
	case err != nil:
		return err
	case epoch != int64(tx.store.epoch):
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the database was restored (epoch %d, and this server began in epoch %d): start this server again", epoch, tx.store.epoch)
	case version != tx.store.version:
		return protocol.Errorf(protocol.CodeIncompatible, "the database has schema version %d by now, and this server knows version %d: run the newer server that migrated it", version, tx.store.version)
	}
	return nil
}

var (
	enterReplica = define(`INSERT INTO replicas (id, boot, beat, blobs, started_at) VALUES ($1, $2, 1, $3, $4)
		ON CONFLICT (id) DO UPDATE SET boot = excluded.boot, beat = replicas.beat + 1, blobs = excluded.blobs, started_at = excluded.started_at`)
	beatReplica   = define(`UPDATE replicas SET beat = beat + 1 WHERE id = $1 AND boot = $2`)
	forgetReplica = define(`DELETE FROM replicas WHERE id = $1 AND boot = $2 AND (beat = $3 OR $3 = 0)`)
	replicas      = define(`SELECT r.id, r.boot, r.beat, r.blobs, r.started_at FROM replicas r ORDER BY r.id`)
	replicaByID   = define(`SELECT r.id, r.boot, r.beat, r.blobs, r.started_at FROM replicas r WHERE r.id = $1`)
)

func scanReplica(r scanner) (v execution.Replica, err error) {
	err = r.Scan(&v.ID, &v.Boot, &v.Beat, &v.Blobs, at(&v.StartedAt))
	return v, err
}

// EnterReplica makes a process the one that runs as a replica. An earlier process
// under the same name learns it at its next beat.
func (tx *Tx) EnterReplica(r execution.Replica) error {
	if err := tx.internal("entering a replica"); err != nil {
		return err
	}
	_, err := tx.exec(enterReplica, r.ID, r.Boot, r.Blobs, tx.Now)
	return err
}

// BeatReplica is one sign of life; stale_fence when another process runs as the
// replica by now.
func (tx *Tx) BeatReplica(id protocol.ReplicaID, boot string) error {
	if err := tx.internal("a replica's sign of life"); err != nil {
		return err
	}
	n, err := tx.exec(beatReplica, id, boot)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeStaleFence, "replica %s is another process by now", id)
	}
	return err
}

// ForgetReplica removes a replica: its own process when it stops, or another when
// it is gone for long. beat guards against one that came back; zero does not.
func (tx *Tx) ForgetReplica(r execution.Replica, beat int64) error {
	if err := tx.internal("forgetting a replica"); err != nil {
		return err
	}
	_, err := tx.exec(forgetReplica, r.ID, r.Boot, beat)
	return err
}

// Replicas that are known, living or not.
func (tx *Tx) Replicas() ([]execution.Replica, error) {
	if err := tx.internal("listing replicas"); err != nil {
		return nil, err
	}
	return list(tx, scanReplica, replicas, nil)
}

// Replica by its id.
func (tx *Tx) Replica(id protocol.ReplicaID) (execution.Replica, error) {
	if err := tx.internal("reading a replica"); err != nil {
		return execution.Replica{}, err
	}
	return one(tx, "replica", id, scanReplica, replicaByID, []any{id})
}

var (
	leadByName = define(`SELECT l.name, l.replica, l.fence, l.taken_at FROM leads l WHERE l.name = $1`)
	insertLead = define(`INSERT INTO leads (name, replica, fence, taken_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`)
	takeLead   = define(`UPDATE leads SET replica = $3, fence = $4, taken_at = $5 WHERE name = $1 AND fence = $2`)
)

func scanLead(r scanner) (l execution.Lead, err error) {
	err = r.Scan(&l.Name, &l.Replica, &l.Fence, at(&l.TakenAt))
	return l, err
}

// Lead by its name; not_found while nobody has had it.
func (tx *Tx) Lead(name string) (execution.Lead, error) {
	if err := tx.internal("reading who leads"); err != nil {
		return execution.Lead{}, err
	}
	return one(tx, "lead", name, scanLead, leadByName, []any{name})
}

// TakeLead gives the lead to a replica under the next fence, if its fence is still
// the last one that the caller read; zero when it read none.
func (tx *Tx) TakeLead(name string, r protocol.ReplicaID, last protocol.Fence) (execution.Lead, error) {
	if err := tx.internal("taking the lead"); err != nil {
		return execution.Lead{}, err
	}
	l := execution.Lead{Name: name, Replica: r, TakenAt: tx.Now}
	var err error
	if l.Fence, err = last.Next(tx.Epoch()); err != nil {
		return l, err
	}
	var n int64
	if last == 0 {
		n, err = tx.exec(insertLead, l.Name, l.Replica, l.Fence, l.TakenAt)
	} else {
		n, err = tx.exec(takeLead, l.Name, last, l.Replica, l.Fence, l.TakenAt)
	}
	if err == nil && n == 0 {
		err = protocol.Errorf(protocol.CodeConflict, "another replica took the lead of %s", name)
	}
	return l, err
}

// Leads refuses a caller that no longer holds the lead. What it writes in this
// transaction cannot follow the writes of its successor. INV-3.
func (tx *Tx) Leads(name string, f protocol.Fence) error {
	l, err := tx.Lead(name)
	if err == nil && l.Fence != f {
		err = protocol.Errorf(protocol.CodeStaleFence, "the lead of %s is under fence %s, not %s", name, l.Fence, f)
	}
	return err
}

var (
	putStatement = define(`INSERT INTO signing_statements (jws, replica, ends_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`)
	dropEnded    = define(`DELETE FROM signing_statements WHERE ends_at <= $1`)
	statementsOf = define(`SELECT s.jws, s.replica, s.ends_at FROM signing_statements s WHERE s.ends_at > $1 ORDER BY s.ends_at DESC, s.jws`)
)

// PutStatements publishes the root's words over signing keys to the brokers of
// every replica, and forgets those that have ended.
func (tx *Tx) PutStatements(all []execution.Statement) error {
	if err := tx.internal("publishing a signing key"); err != nil {
		return err
	}
	if _, err := tx.exec(dropEnded, tx.Now); err != nil {
		return err
	}
	for _, s := range all {
		if _, err := tx.exec(putStatement, s.JWS, s.Replica, s.EndsAt); err != nil {
			return err
		}
	}
	tx.touch(TopicFloors) // the feed carries them too
	return nil
}

// Statements in force of every replica, the longest first.
func (tx *Tx) Statements() ([]execution.Statement, error) {
	if err := tx.internal("reading the feed"); err != nil {
		return nil, err
	}
	return list(tx, func(r scanner) (s execution.Statement, err error) {
		err = r.Scan(&s.JWS, &s.Replica, at(&s.EndsAt))
		return s, err
	}, statementsOf, []any{tx.Now})
}
