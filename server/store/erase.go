package store

import (
	"bytes"

	"bivouac/edge/protocol"
	"bivouac/server/session"
)

var (
	eraseEventPayloads = define(`UPDATE event_payloads SET salt = $3, payload = '', erased_at = $2 WHERE session = $1 AND erased_at = 0`)
	eraseTurns         = define(`UPDATE turns SET prompt = $2, answer = CASE WHEN answer = '' THEN '' ELSE $2 END, message = '', loop = $3
		WHERE session = $1`)
	eraseActions = define(`UPDATE actions SET arguments = $2, result = $3, evidence = ''
		WHERE turn IN (SELECT t.id FROM turns t WHERE t.session = $1)`)
	eraseAsked   = define(`UPDATE approvals SET arguments = $2 WHERE turn IN (SELECT t.id FROM turns t WHERE t.session = $1)`)
	eraseRecords = define(`DELETE FROM attempt_records WHERE attempt IN (SELECT att.id FROM attempts att WHERE
		(att.subject_kind = 'agent-turn' AND att.subject_id IN (SELECT t.id FROM turns t WHERE t.session = $1)) OR
		(att.subject_kind = 'agent-action' AND att.subject_id IN (SELECT a.id FROM actions a JOIN turns t ON t.id = a.turn WHERE t.session = $1)))`)
	eraseWork = define(`UPDATE attempts SET work = $2 WHERE
		(subject_kind = 'agent-turn' AND subject_id IN (SELECT t.id FROM turns t WHERE t.session = $1)) OR
		(subject_kind = 'agent-action' AND subject_id IN (SELECT a.id FROM actions a JOIN turns t ON t.id = a.turn WHERE t.session = $1))`)
	eraseProjection = define(`DELETE FROM projections WHERE session = $1`)
	unfinished      = define(`SELECT COUNT(*) FROM turns t WHERE t.session = $1 AND (t.state = 'QUEUED' OR t.state IN ` + activeStates + `)`)
)

// ErasePayloads takes the words out of a session and leaves fixed tombstones:
// event payloads with their salts, prompts, answers, arguments, results, journal
// records and the projection, which is rebuilt from what is left. States, ids,
// digests and the event chain stay, and the chain still verifies. INV-8.
func (tx *Tx) ErasePayloads(s protocol.SessionID) error {
	if _, err := tx.locked(s); err != nil {
		return err
	}
	n, err := first(tx, number, unfinished, []any{s})
	if err != nil {
		return err
	}
	if n > 0 {
		return protocol.Errorf(protocol.CodeFailedPrecondition,
			"session %s has %d turns that have not ended: cancel them with `bivouac cancel`, then erase", s, n)
	}
	nothing := []byte(nil)
	for _, step := range []struct {
		st   *statement
		args []any
	}{
		{eraseEventPayloads, []any{s, tx.Now, nothing}},
		{eraseTurns, []any{s, Tombstone, nothing}},
		{eraseAsked, []any{s, Tombstone}},
		{eraseRecords, []any{s}},
		{eraseWork, []any{s, nothing}},
		{eraseActions, []any{s, Tombstone, nothing}},
		{eraseProjection, []any{s}},
	} {
		if _, err := tx.exec(step.st, step.args...); err != nil {
			return err
		}
	}
	tx.touch(TopicEvents)
	tx.touch(EventsOf(s))
	return nil
}

// VerifyChain proves that stored events follow each other without a gap, that
// each hash covers the one before and the stored bytes, and that every field is
// what the bytes say. prev is the hash before the first of them, nil at seq 1.
// INV-8.
func VerifyChain(prev []byte, events []session.Stored) error {
	for i, e := range events {
		want, err := decodeEvent(session.Stored{Bytes: e.Bytes})
		if err != nil {
			return err
		}
		s, _ := readEventBytes(e.Bytes)
		broken := ""
		switch {
		case i > 0 && e.Session != events[0].Session:
			broken = "belongs to another session"
		case i > 0 && e.Seq != events[i-1].Seq+1, i == 0 && prev == nil && e.Seq != 1:
			broken = "leaves a gap in the sequence"
		case !bytes.Equal(e.PrevHash, prev):
			broken = "does not name the hash before it"
		case !bytes.Equal(e.Hash, chainHash(e.PrevHash, e.Bytes)):
			broken = "has another hash than its bytes"
		case e.Session != want.Session || e.Seq != want.Seq || !bytes.Equal(canonicalEvent(e, s.PayloadDigest), e.Bytes):
			broken = "says something else than its bytes"
		case (e.Payload == "") != (s.PayloadDigest == ""):
			broken = "lost or gained its payload"
		}
		if broken != "" {
			return protocol.Errorf(protocol.CodeDataLoss, "event %d of session %s %s", e.Seq, e.Session, broken)
		}
		prev = e.Hash
	}
	return nil
}

type kept struct {
	seq     int64
	salt    []byte
	payload string
	erased  int64
}

var payloadsAfter = define(`SELECT p.seq, p.salt, p.payload, p.erased_at FROM event_payloads p JOIN sessions s ON s.id = p.session
	WHERE ` + own("s") + ` AND s.id = $3 AND p.seq > $4 ORDER BY p.seq LIMIT $5`)

// VerifyEvents proves the whole chain of a session up to the end that its row
// names, and every payload that is not erased against its salted digest. INV-8.
func (tx *Tx) VerifyEvents(id protocol.SessionID) error {
	s, err := tx.Session(id)
	if err != nil {
		return err
	}
	var prev []byte
	var seq int64
	for {
		page, err := tx.Events(id, seq, maxPage)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		if err := VerifyChain(prev, page); err != nil {
			return err
		}
		if err := tx.verifyPayloads(id, page); err != nil {
			return err
		}
		seq, prev = page[len(page)-1].Seq, page[len(page)-1].Hash
	}
	if seq != s.LastSeq || !bytes.Equal(prev, s.LastHash) {
		return protocol.Errorf(protocol.CodeDataLoss, "the events of session %s end at %d, and its row says %d", id, seq, s.LastSeq)
	}
	return nil
}

func (tx *Tx) verifyPayloads(id protocol.SessionID, page []session.Stored) error {
	begin, end := page[0].Seq, page[len(page)-1].Seq
	rows, err := list(tx, func(r scanner) (k kept, err error) {
		err = r.Scan(&k.seq, blob(&k.salt), &k.payload, &k.erased)
		return k, err
	}, payloadsAfter, tx.mine(id, begin-1, maxPage))
	if err != nil {
		return err
	}
	for _, k := range rows {
		if k.seq > end || k.erased != 0 {
			continue
		}
		e, err := readEventBytes(page[k.seq-begin].Bytes)
		if err != nil {
			return err
		}
		if payloadDigest(k.salt, k.payload) != e.PayloadDigest {
			return protocol.Errorf(protocol.CodeDataLoss, "the payload of event %d of session %s is not the one that was recorded", k.seq, id)
		}
	}
	return nil
}
