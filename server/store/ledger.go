package store

import (
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/session"
)

// SealedSegment is one leaf of a tenant's ledger.
type SealedSegment struct {
	Tenant   protocol.TenantID
	N        int64
	Session  protocol.SessionID
	From, To int64
	Hash     []byte // of event To
	SealedAt time.Time
}

// LedgerHead is a tenant's tree, and its newest signed state.
type LedgerHead struct {
	Tenant protocol.TenantID
	Size   int64
	Root   []byte
	At     time.Time
	// SignedSize is the size that Receipt is over; zero: none is signed yet.
	SignedSize int64
	Receipt    string
	SignedAt   time.Time
	// Refused says why the broker does not sign what is sealed since; empty: it does.
	Refused string
}

var (
	unsealed = define(`SELECT s.tenant, s.id, s.sealed_seq + 1, s.last_seq, s.last_hash FROM sessions s
		WHERE s.last_seq > s.sealed_seq ORDER BY s.tenant, s.id LIMIT $1`)
	insertSegment = define(`INSERT INTO ledger_segments (tenant, n, session, from_seq, to_seq, hash, sealed_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`)
	markSealed    = define(`UPDATE sessions SET sealed_seq = $2 WHERE id = $1 AND sealed_seq = $3 AND last_seq >= $2`)
	insertHash    = define(`INSERT INTO ledger_hashes (tenant, i, hash) VALUES ($1, $2, $3)`)
	hashAt        = define(`SELECT h.hash FROM ledger_hashes h WHERE ($1 = '' OR (h.tenant = $1 AND $2 <> '')) AND h.tenant = $3 AND h.i = $4`)
	eventHashAt   = define(`SELECT e.hash FROM events e WHERE e.session = $1 AND e.seq = $2`)
)

// Unsealed are sessions with events that are in no segment yet: a session's last
// events as one segment without a number.
func (tx *Tx) Unsealed(limit int) ([]SealedSegment, error) {
	if err := tx.internal("sealing"); err != nil {
		return nil, err
	}
	return list(tx, func(r scanner) (s SealedSegment, err error) {
		err = r.Scan(&s.Tenant, &s.Session, &s.From, &s.To, blob(&s.Hash))
		return s, err
	}, unsealed, []any{limited(limit)})
}

// EventHash is the chain's hash at an event, for the end of a segment.
func (tx *Tx) EventHash(s protocol.SessionID, seq int64) ([]byte, error) {
	if err := tx.internal("sealing"); err != nil {
		return nil, err
	}
	return one(tx, "event", seq, func(r scanner) (b []byte, err error) {
		err = r.Scan(blob(&b))
		return b, err
	}, eventHashAt, []any{s, seq})
}

// Seal adds a leaf and the nodes that it brings. It goes on exactly where the
// session's last segment ended.
func (tx *Tx) Seal(s SealedSegment, first int64, nodes [][]byte) error {
	if err := tx.internal("sealing"); err != nil {
		return err
	}
	n, err := tx.exec(markSealed, s.Session, s.To, s.From-1)
	if err != nil {
		return err
	}
	if n == 0 {
		return protocol.Errorf(protocol.CodeConflict, "the events of session %s are sealed otherwise by now", s.Session)
	}
	if _, err := tx.exec(insertSegment, s.Tenant, s.N, s.Session, s.From, s.To, s.Hash, tx.Now); err != nil {
		return err
	}
	for i, h := range nodes {
		if _, err := tx.exec(insertHash, s.Tenant, first+int64(i), h); err != nil {
			return err
		}
	}
	return nil
}

// LedgerNodes reads nodes of a tree by their indexes, in that order.
func (tx *Tx) LedgerNodes(t protocol.TenantID, indexes []int64) ([][]byte, error) {
	out := make([][]byte, 0, len(indexes))
	for _, i := range indexes {
		h, err := one(tx, "node of the ledger", i, func(r scanner) (b []byte, err error) {
			err = r.Scan(blob(&b))
			return b, err
		}, hashAt, tx.mine(t, i))
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}

const headColumns = `h.tenant, h.size, h.root, h.at, h.signed_size, h.receipt, h.signed_at, h.refused`

func scanHead(r scanner) (h LedgerHead, err error) {
	err = r.Scan(&h.Tenant, &h.Size, blob(&h.Root), at(&h.At), &h.SignedSize, &h.Receipt, at(&h.SignedAt), &h.Refused)
	return h, err
}

var (
	headOf = define(`SELECT ` + headColumns + ` FROM ledger_heads h WHERE ($1 = '' OR (h.tenant = $1 AND $2 <> '')) AND h.tenant = $3`)
	// A tenant has one row, and there are few tenants.
	headsUnsigned = define(`SELECT ` + headColumns + ` FROM ledger_heads h WHERE h.signed_size < h.size ORDER BY h.tenant LIMIT $1`)
	growHead      = define(`INSERT INTO ledger_heads (tenant, size, root, at, signed_size, receipt, signed_at) VALUES ($1, $2, $3, $4, 0, '', 0)
		ON CONFLICT (tenant) DO UPDATE SET size = excluded.size, root = excluded.root, at = excluded.at WHERE ledger_heads.size < excluded.size`)
	signHead   = define(`UPDATE ledger_heads SET signed_size = $2, receipt = $3, signed_at = $4, refused = '' WHERE tenant = $1 AND signed_size < $2 AND size >= $2`)
	refuseHead = define(`UPDATE ledger_heads SET refused = $2 WHERE tenant = $1`)
)

// Ledger is the head of a tenant's ledger; not_found before the first segment.
func (tx *Tx) Ledger(t protocol.TenantID) (LedgerHead, error) {
	return one(tx, "ledger of tenant", t, scanHead, headOf, tx.mine(t))
}

// RefusedLedgers are those whose newest head the broker does not sign.
func (tx *Tx) RefusedLedgers() (refused []LedgerHead, err error) {
	unsigned, err := tx.UnsignedLedgers(All)
	for _, h := range unsigned {
		if h.Refused != "" {
			refused = append(refused, h)
		}
	}
	return refused, err
}

// UnsignedLedgers are those that have grown since a broker signed them.
func (tx *Tx) UnsignedLedgers(limit int) ([]LedgerHead, error) {
	if err := tx.internal("sealing"); err != nil {
		return nil, err
	}
	return list(tx, scanHead, headsUnsigned, []any{limited(limit)})
}

// GrowLedger notes the tree's new size and root.
func (tx *Tx) GrowLedger(t protocol.TenantID, size int64, root []byte) error {
	if err := tx.internal("sealing"); err != nil {
		return err
	}
	_, err := tx.exec(growHead, t, size, root, tx.Now)
	return err
}

// SignLedger keeps the signature over a size, unless a larger one is signed.
func (tx *Tx) SignLedger(t protocol.TenantID, size int64, receipt string) error {
	if err := tx.internal("sealing"); err != nil {
		return err
	}
	_, err := tx.exec(signHead, t, size, receipt, tx.Now)
	return err
}

var segmentsOf = define(`SELECT g.tenant, g.n, g.session, g.from_seq, g.to_seq, g.hash, g.sealed_at
	FROM ledger_segments g JOIN sessions s ON s.id = g.session
	WHERE ` + own("s") + ` AND g.session = $3 AND g.from_seq > $4 AND g.n < $5 ORDER BY g.from_seq LIMIT $6`)

// Segments of a session below a size of the ledger, behind a sequence, in order.
func (tx *Tx) Segments(s protocol.SessionID, after, size int64, limit int) ([]SealedSegment, error) {
	if _, err := tx.Session(s); err != nil {
		return nil, err
	}
	return list(tx, func(r scanner) (g SealedSegment, err error) {
		err = r.Scan(&g.Tenant, &g.N, &g.Session, &g.From, &g.To, blob(&g.Hash), at(&g.SealedAt))
		return g, err
	}, segmentsOf, tx.mine(s, after, size, limited(limit)))
}

var unsealedEvents = define(`SELECT COALESCE(SUM(s.last_seq - s.sealed_seq), 0) FROM sessions s
	WHERE s.last_seq > s.sealed_seq AND s.tenant = $1 AND s.principal = $2`)

// UnsealedEvents counts those of the caller's own sessions.
func (tx *Tx) UnsealedEvents() (int64, error) {
	if tx.caller.kind != callerPrincipal {
		return 0, nil
	}
	return first(tx, number, unsealedEvents, tx.mine())
}

// chainOnly reads events without their payloads.
var chainOnly = define(`SELECT e.bytes, e.hash FROM events e JOIN sessions s ON s.id = e.session
	WHERE ` + own("s") + ` AND e.session = $3 AND e.seq > $4 AND e.seq <= $5 ORDER BY e.seq LIMIT $6`)

// Chain is the stored bytes and hashes of a session's events behind a sequence
// and up to another, without payloads.
func (tx *Tx) Chain(s protocol.SessionID, after, upTo int64, limit int) ([]session.Stored, error) {
	if _, err := tx.Session(s); err != nil {
		return nil, err
	}
	return list(tx, func(r scanner) (e session.Stored, err error) {
		err = r.Scan(blob(&e.Bytes), blob(&e.Hash))
		return e, err
	}, chainOnly, tx.mine(s, after, upTo, limited(limit)))
}

// RefuseLedger notes why the broker signs no newer head.
func (tx *Tx) RefuseLedger(t protocol.TenantID, why string) error {
	if err := tx.internal("sealing"); err != nil {
		return err
	}
	_, err := tx.exec(refuseHead, t, why)
	return err
}
