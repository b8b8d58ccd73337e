package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

const floorColumns = `f.seq, f.kind, f.id, f.minimum, f.at, f.expires_at`

func scanFloor(r scanner) (f policy.Floor, err error) {
	err = r.Scan(&f.Seq, &f.Kind, &f.ID, &f.Minimum, at(&f.At), at(&f.ExpiresAt))
	return f, err
}

var (
	floorOf      = define(`SELECT ` + floorColumns + ` FROM floors f WHERE f.kind = $1 AND f.id = $2`)
	nextFloorSeq = define(`UPDATE meta SET value = value + 1 WHERE name = 'floor_seq' RETURNING value`)
	lastFloorSeq = define(`SELECT value FROM meta WHERE name = 'floor_seq'`)
	putFloor     = define(`INSERT INTO floors (seq, kind, id, minimum, at, expires_at) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (kind, id) DO UPDATE SET seq = excluded.seq, minimum = excluded.minimum, at = excluded.at, expires_at = excluded.expires_at`)
	dropFloors  = define(`DELETE FROM floors WHERE expires_at > 0 AND expires_at <= $1`)
	floorsAfter = define(`SELECT ` + floorColumns + ` FROM floors f WHERE f.seq > $1 ORDER BY f.seq LIMIT $2`)
)

// AddFloor appends to the feed. A floor never falls and never ends earlier than
// an earlier one of the same thing; it takes that one's place at a new sequence.
// A principal may bound only what is its own, an admin what it manages. INV-13.
func (tx *Tx) AddFloor(f policy.Floor) (policy.Floor, error) {
	if err := tx.bounds(f); err != nil {
		return f, err
	}
	if f.At.IsZero() {
		f.At = tx.Now
	}
	switch old, err := first(tx, scanFloor, floorOf, []any{f.Kind, f.ID}); {
	case err == errNoRow:
	case err != nil:
		return f, err
	default:
		f.Minimum = max(f.Minimum, old.Minimum)
		if old.ExpiresAt.IsZero() || (!f.ExpiresAt.IsZero() && f.ExpiresAt.Before(old.ExpiresAt)) {
			f.ExpiresAt = old.ExpiresAt
		}
	}
	seq, err := returning(tx, number, nextFloorSeq, nil)
	if err != nil {
		return f, err
	}
	f.Seq = seq
	if _, err := tx.exec(dropFloors, tx.Now); err != nil {
		return f, err
	}
	if _, err := tx.exec(putFloor, f.Seq, f.Kind, f.ID, f.Minimum, f.At, f.ExpiresAt); err != nil {
		return f, err
	}
	tx.touch(TopicFloors)
	return f, nil
}

// bounds refuses a floor over what is another's, in the words of an absent thing.
func (tx *Tx) bounds(f policy.Floor) error {
	if tx.caller.Internal() {
		return nil
	}
	var err error
	switch f.Kind {
	case policy.FloorGrant:
		_, err = tx.Grant(protocol.GrantID(f.ID))
	case policy.FloorRunner: // by thumbprint or id
		var r, e = tx.RunnerByThumbprint(f.ID)
		if e != nil {
			r, e = tx.Runner(protocol.RunnerID(f.ID))
		}
		if err = e; err == nil {
			_, err = tx.commanded("revoking a runner", r.ID)
		}
	case policy.FloorInstance:
		_, err = one(tx, "instance", f.ID, scanInstance, instanceByID, tx.managing(f.ID))
	case policy.FloorSession:
		_, err = tx.Session(protocol.SessionID(f.ID))
	case policy.FloorTurn:
		_, err = tx.Turn(protocol.TurnID(f.ID))
	case policy.FloorAttempt:
		_, err = tx.Attempt(protocol.AttemptID(f.ID))
	case policy.FloorPrincipal:
		_, err = tx.Principal(protocol.PrincipalID(f.ID))
	default:
		err = protocol.Errorf(protocol.CodeInvalidArgument, "there is no floor of kind %d", f.Kind)
	}
	if err == nil && tx.caller.kind == callerRunner {
		err = protocol.Errorf(protocol.CodePermissionDenied, "a runner adds no floors")
	}
	return err
}

// Floors after a sequence, and the newest sequence. The feed alone reads them.
func (tx *Tx) Floors(after int64, limit int) ([]policy.Floor, int64, error) {
	if err := tx.internal("reading the feed"); err != nil {
		return nil, 0, err
	}
	newest, err := first(tx, number, lastFloorSeq, nil)
	if err != nil {
		return nil, 0, err
	}
	floors, err := list(tx, scanFloor, floorsAfter, []any{after, limited(limit)})
	return floors, newest, err
}
