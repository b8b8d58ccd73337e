package store

import (
	"bytes"

	"bivouac/edge/protocol"
	"bivouac/server/session"
)

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
