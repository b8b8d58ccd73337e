package storetest

import (
	"bytes"
	"slices"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/session"
	"bivouac/server/store"
)

var ledgerProbes = map[string]probe{
	"Unsealed": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Unsealed(0)
		return has(all, err, func(s store.SealedSegment) bool { return s.Tenant == x.Tenant })
	}},
	"EventHash": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) { return got(tx.EventHash(x.Session, 1)) }},
	"Seal": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(tx.Seal(store.SealedSegment{Tenant: x.Tenant, N: 7, Session: x.Session, From: 1, To: 1, Hash: []byte("h")}, 7, nil))
	}},
	"LedgerNodes": {by: inTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.LedgerNodes(x.Tenant, []int64{0})
		return len(all) == 1, err
	}},
	"Ledger": {by: inTenant, run: func(tx *store.Tx, x *side) (bool, error) {
		h, err := tx.Ledger(x.Tenant)
		return h.Size > 0, err
	}},
	"UnsignedLedgers": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.UnsignedLedgers(0)
		return has(all, err, func(h store.LedgerHead) bool { return h.Tenant == x.Tenant })
	}},
	"RefusedLedgers": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		if tx.Caller().Internal() { // who may not refuse one may not see one either
			if err := tx.RefuseLedger(x.Tenant, "no"); err != nil {
				return false, err
			}
		}
		all, err := tx.RefusedLedgers()
		return has(all, err, func(h store.LedgerHead) bool { return h.Tenant == x.Tenant })
	}},
	"GrowLedger":   {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.GrowLedger(x.Tenant, 9, []byte("r"))) }},
	"RefuseLedger": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.RefuseLedger(x.Tenant, "no")) }},
	"SignLedger":   {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) { return did(tx.SignLedger(x.Tenant, 1, "jws")) }},
	"Segments": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Segments(x.Old, 0, 10, 0)
		return len(all) == 1, err
	}},
	// A number about the caller's own: it answers no row.
	"UnsealedEvents": {everybody: true, run: func(tx *store.Tx, x *side) (bool, error) { _, err := tx.UnsealedEvents(); return true, err }},
	"DropUnusedUploads": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		return did(func() error { _, err := tx.DropUnusedUploads(tx.Now); return err }())
	}},
	"Unread": {by: loopOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Unread([]string{"nobody's"})
		return len(all) == 1, err
	}},
	"Chain": {by: ownerOnly, run: func(tx *store.Tx, x *side) (bool, error) {
		all, err := tx.Chain(x.Session, 0, 100, 0)
		return len(all) > 0, err
	}},
}

// sealOld makes the side's first segment: of the session that has ended.
func (x *side) sealOld(tx *store.Tx) error {
	events, err := tx.AppendEvents(x.Old, session.Event{Type: session.SessionCreated})
	if err != nil {
		return err
	}
	last := events[len(events)-1]
	if err := tx.Seal(store.SealedSegment{Tenant: x.Tenant, Session: x.Old, From: 1, To: last.Seq, Hash: last.Hash}, 0, [][]byte{[]byte("node of " + x.Name)}); err != nil {
		return err
	}
	return tx.GrowLedger(x.Tenant, 1, []byte("root of "+x.Name))
}

// ledger: segments go on where the last one ended, and once; a head only grows.
func ledger(t *testing.T, s *store.Store) {
	x := build(t, s, "red")
	next := func() store.SealedSegment {
		var out store.SealedSegment
		view(t, s, loop, func(tx *store.Tx) error {
			all, err := tx.Unsealed(0)
			if i := slices.IndexFunc(all, func(u store.SealedSegment) bool { return u.Session == x.Session }); i >= 0 {
				out = all[i]
			}
			return err
		})
		return out
	}
	seal := func(g store.SealedSegment) error {
		return attempt(s, func(tx *store.Tx) error { return tx.Seal(g, g.N*2, [][]byte{{1}, {2}}) })
	}
	g := next()
	var want session.Session
	view(t, s, loop, func(tx *store.Tx) (err error) { want, err = tx.Session(x.Session); return err })
	if g.Tenant != x.Tenant || g.From != 1 || g.To != want.LastSeq || !bytes.Equal(g.Hash, want.LastHash) {
		t.Fatalf("unsealed: %+v of %+v", g, want)
	}
	g.N = 1
	if err := seal(g); err != nil {
		t.Fatal(err)
	}
	if again := next(); again.Session != "" {
		t.Errorf("sealed, and unsealed: %+v", again)
	}
	g.N = 2
	wantCode(t, "the same events again", seal(g), protocol.CodeConflict)
	update(t, s, loop, func(tx *store.Tx) error {
		_, err := tx.AppendEvents(x.Session, session.Event{Type: session.SessionClosed})
		return err
	})
	g2 := next()
	if g2.From != g.To+1 || g2.To != g.To+1 {
		t.Errorf("the next segment: %+v", g2)
	}
	g2.N, g2.From = 2, g2.From+1
	wantCode(t, "a gap", seal(g2), protocol.CodeConflict)

	update(t, s, loop, func(tx *store.Tx) error {
		if err := tx.GrowLedger(x.Tenant, 5, []byte("five")); err != nil {
			return err
		}
		if err := tx.GrowLedger(x.Tenant, 4, []byte("four")); err != nil {
			return err
		}
		if err := tx.SignLedger(x.Tenant, 5, "signed five"); err != nil {
			return err
		}
		if err := tx.SignLedger(x.Tenant, 3, "signed three"); err != nil {
			return err
		}
		h, err := tx.Ledger(x.Tenant)
		if h.Size != 5 || string(h.Root) != "five" || h.SignedSize != 5 || h.Receipt != "signed five" {
			t.Errorf("head %+v", h)
		}
		return err
	})
	view(t, s, x.user(), func(tx *store.Tx) error {
		all, err := tx.Segments(x.Session, 0, 2, 0)
		if err == nil && (len(all) != 1 || all[0].To != g.To) {
			t.Errorf("segments %+v", all)
		}
		chain, cerr := tx.Chain(x.Session, 0, g.To, 0)
		if len(chain) != int(g.To) || !bytes.Equal(chain[len(chain)-1].Hash, g.Hash) {
			t.Errorf("%d events of the chain, %v", len(chain), cerr)
		}
		return err
	})
}
