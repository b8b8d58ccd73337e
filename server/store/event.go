package store

import (
	"crypto/sha256"
	"io"

	"bivouac/edge/protocol"
	"bivouac/server/session"
)

var (
	insertEvent   = define(`INSERT INTO events (session, seq, turn, bytes, prev_hash, hash) VALUES ($1, $2, $3, $4, $5, $6)`)
	insertPayload = define(`INSERT INTO event_payloads (session, seq, salt, payload, erased_at) VALUES ($1, $2, $3, $4, 0)`)
	advanceChain  = define(`UPDATE sessions SET last_seq = $2, last_hash = $3 WHERE id = $1 AND last_seq = $4`)
)

// AppendEvents gives each event the next sequence of the session, on its locked row, and chains it by hash. INV-8.
func (tx *Tx) AppendEvents(s protocol.SessionID, events ...session.Event) ([]session.Stored, error) {
	if err := tx.usable(true); err != nil {
		return nil, err
	}
	row, err := tx.locked(s)
	if err != nil || len(events) == 0 {
		return nil, err
	}
	out, seq, hash, err := tx.chain(row, events...)
	if err != nil {
		return nil, err
	}
	n, err := tx.exec(advanceChain, s, seq, hash, row.LastSeq)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, protocol.Errorf(protocol.CodeConflict, "the events of session %s moved on", s)
	}
	tx.touch(TopicEvents)
	tx.touch(EventsOf(s))
	return out, nil
}

func (tx *Tx) appendEvent(e session.Stored) (session.Stored, error) {
	e.Event = cleanEvent(e.Event)
	var salt []byte
	var digest string
	if e.Payload != "" {
		salt = make([]byte, 32)
		if _, err := io.ReadFull(tx.store.entropy, salt); err != nil {
			return e, err
		}
		digest = payloadDigest(salt, e.Payload)
	}
	e.Bytes = canonicalEvent(e, digest)
	e.Hash = chainHash(e.PrevHash, e.Bytes)
	if _, err := tx.exec(insertEvent, e.Session, e.Seq, e.Turn, e.Bytes, e.PrevHash, e.Hash); err != nil {
		return e, err
	}
	if e.Payload != "" {
		if _, err := tx.exec(insertPayload, e.Session, e.Seq, salt, e.Payload); err != nil {
			return e, err
		}
	}
	return e, nil
}

// chainHash is SHA-256(previous hash || canonical bytes).
func chainHash(prev, bytes []byte) []byte {
	h := sha256.New()
	h.Write(prev)
	h.Write(bytes)
	return h.Sum(nil)
}

const eventColumns = `e.session, e.seq, e.bytes, e.prev_hash, e.hash, COALESCE(p.payload, ''), COALESCE(p.erased_at, 0)`

const fromEvents = ` FROM events e JOIN sessions s ON s.id = e.session
	LEFT JOIN event_payloads p ON p.session = e.session AND p.seq = e.seq `

func scanEvent(r scanner) (e session.Stored, err error) {
	var sid protocol.SessionID
	var seq, erased int64
	if err := r.Scan(&sid, &seq, blob(&e.Bytes), blob(&e.PrevHash), blob(&e.Hash), &e.Payload, &erased); err != nil {
		return e, err
	}
	payload := e.Payload
	if erased != 0 {
		payload = Tombstone
	}
	if e, err = decodeEvent(e); err != nil {
		return e, err
	}
	if e.Session != sid || e.Seq != seq {
		return e, protocol.Errorf(protocol.CodeDataLoss, "event %d of session %s holds the bytes of event %d of session %s", seq, sid, e.Seq, e.Session)
	}
	e.Payload = payload
	return e, nil
}

var (
	eventsAfter = define(`SELECT ` + eventColumns + fromEvents + `
		WHERE ` + own("s") + ` AND e.session = $3 AND e.seq > $4 ORDER BY e.seq LIMIT $5`)
	eventsOfTurn = define(`SELECT ` + eventColumns + fromEvents + `
		WHERE ` + own("s") + ` AND e.turn = $3 AND e.seq > $4 ORDER BY e.seq LIMIT $5`)
	newestEventsOfTurn = define(`SELECT ` + eventColumns + fromEvents + `
		WHERE ` + own("s") + ` AND e.turn = $3 AND ($4 = 0 OR e.seq < $4) ORDER BY e.seq DESC LIMIT $5`)
)

// Events of a session after a sequence, in order.
func (tx *Tx) Events(s protocol.SessionID, after int64, limit int) ([]session.Stored, error) {
	if _, err := tx.Session(s); err != nil {
		return nil, err
	}
	return list(tx, scanEvent, eventsAfter, tx.mine(s, after, limited(limit)))
}

// EventsOfTurn after a sequence, in order.
func (tx *Tx) EventsOfTurn(t protocol.TurnID, after int64, limit int) ([]session.Stored, error) {
	if _, err := tx.Turn(t); err != nil {
		return nil, err
	}
	return list(tx, scanEvent, eventsOfTurn, tx.mine(t, after, limited(limit)))
}

// NewestEventsOfTurn before a sequence, newest first; before zero, from its end.
func (tx *Tx) NewestEventsOfTurn(t protocol.TurnID, before int64, limit int) ([]session.Stored, error) {
	if _, err := tx.Turn(t); err != nil {
		return nil, err
	}
	return list(tx, scanEvent, newestEventsOfTurn, tx.mine(t, before, limited(limit)))
}

var (
	saveProjection = define(`INSERT INTO projections (session, n, turn, messages) VALUES ($1, $2, $3, $4)
		ON CONFLICT (session, n) DO UPDATE SET turn = excluded.turn, messages = excluded.messages`)
	projectionOf = define(`SELECT p.messages FROM projections p JOIN sessions s ON s.id = p.session
		WHERE ` + own("s") + ` AND s.id = $3 ORDER BY p.n`)
)

// SaveProjection stores the messages that one ended turn adds to the conversation.
func (tx *Tx) SaveProjection(s protocol.SessionID, t protocol.TurnID, n int64, messages []byte) error {
	turn, err := tx.Turn(t)
	if err != nil {
		return err
	}
	if turn.Session != s || turn.N != n {
		return protocol.Errorf(protocol.CodeInvalidArgument, "turn %s is not number %d of session %s", t, n, s)
	}
	_, err = tx.exec(saveProjection, s, n, t, messages)
	return err
}

// Projection returns the encoded messages of each ended turn, in order.
func (tx *Tx) Projection(s protocol.SessionID) ([][]byte, error) {
	if _, err := tx.Session(s); err != nil {
		return nil, err
	}
	return list(tx, func(r scanner) (b []byte, err error) {
		err = r.Scan(blob(&b))
		return b, err
	}, projectionOf, tx.mine(s))
}
