package engine

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/ledger"
	"bivouac/server/store"
)

const (
	sealOp = "seal"
	// sealBatch is how many sessions one pass seals, and maxSegment how many events
	// one segment has at most: what one transaction writes stays small.
	sealBatch  = 64
	maxSegment = 1000
)

// tickSeal makes segments of what has happened since the last pass, and has the
// broker sign the heads of ledgers that have grown. Sealing waits for nobody, and
// nobody waits for it. INV-8.
func (e *Engine) tickSeal(ctx context.Context) (bool, error) {
	now := time.Now()
	if !e.pauses.over(sealOp, now) {
		return false, nil
	}
	sealed, err := e.sealAll(ctx)
	if err != nil {
		return false, err
	}
	if sealed == sealBatch {
		return true, nil // there is more
	}
	e.pauses.set(sealOp, now.Add(e.cfg.Limits.SealEvery))
	return e.signLedgers(ctx)
}

// sealAll makes one batch of segments. It looks first: an idle server writes
// nothing.
func (e *Engine) sealAll(ctx context.Context) (sealed int, err error) {
	err = e.cfg.Store.View(ctx, store.AsLoop(sealOp), func(tx *store.Tx) error {
		open, err := tx.Unsealed(1)
		sealed = len(open)
		return err
	})
	if err != nil || sealed == 0 {
		return 0, err
	}
	err = e.cfg.Store.Update(ctx, store.AsLoop(sealOp), func(tx *store.Tx) error {
		sealed = 0
		if err := e.guardLead(tx); err != nil {
			return err
		}
		open, err := tx.Unsealed(sealBatch)
		if err != nil {
			return err
		}
		sealed = len(open)
		return seal(tx, open)
	})
	return sealed, err
}

// seal adds segments to their tenants' trees; they come sorted by tenant.
func seal(tx *store.Tx, open []store.SealedSegment) error {
	for len(open) > 0 {
		t := open[0].Tenant
		read := nodes(tx, t)
		head, err := tx.Ledger(t)
		if err != nil && !notFound(err) {
			return err
		}
		size := head.Size
		for ; len(open) > 0 && open[0].Tenant == t; open = open[1:] {
			if err := sealOne(tx, open[0], size, read); err != nil {
				return err
			}
			size++
		}
		root, err := ledger.Root(size, read)
		if err != nil {
			return err
		}
		if err := tx.GrowLedger(t, size, root[:]); err != nil {
			return err
		}
	}
	return nil
}

func sealOne(tx *store.Tx, s store.SealedSegment, n int64, read ledger.ReadFunc) (err error) {
	s.N = n
	if s.To-s.From >= maxSegment {
		s.To = s.From + maxSegment - 1
		if s.Hash, err = tx.EventHash(s.Session, s.To); err != nil {
			return err
		}
	}
	first, hashes, err := ledger.Grow(n, ledger.Segment{Session: s.Session, From: s.From, To: s.To, Hash: s.Hash}, read)
	if err != nil {
		return err
	}
	added := make([][]byte, len(hashes))
	for i := range hashes {
		added[i] = hashes[i][:]
	}
	return tx.Seal(s, first, added)
}

// nodes reads a tenant's tree inside a transaction.
func nodes(tx *store.Tx, t protocol.TenantID) ledger.ReadFunc {
	return func(indexes []int64) ([]ledger.Hash, error) {
		all, err := tx.LedgerNodes(t, indexes)
		if err != nil {
			return nil, err
		}
		out := make([]ledger.Hash, len(all))
		for i, b := range all {
			if len(b) != len(ledger.Hash{}) {
				return nil, protocol.Errorf(protocol.CodeDataLoss, "node %d of the ledger of tenant %s is damaged", indexes[i], t)
			}
			out[i] = ledger.Hash(b)
		}
		return out, nil
	}
}

// signLedgers asks the broker for signatures, one op for all.
func (e *Engine) signLedgers(ctx context.Context) (bool, error) {
	if e.busy(sealOp) || e.view.boot() == "" {
		return false, nil // without a broker the next pass asks
	}
	var grown []store.LedgerHead
	err := e.cfg.Store.View(ctx, store.AsLoop(sealOp), func(tx *store.Tx) (err error) {
		grown, err = tx.UnsignedLedgers(sealBatch)
		return err
	})
	if err != nil || len(grown) == 0 {
		return false, err
	}
	return e.cfg.Ops.Start(sealOp, func(ctx context.Context) {
		for _, h := range grown {
			done, err := e.signLedger(ctx, h.Tenant)
			if err != nil {
				e.cfg.Log.Warn("the ledger's head is not signed; it is tried again", "tenant", h.Tenant, "error", err)
				return
			}
			e.settled.put(completion{op: sealOp, apply: func(ctx context.Context) error {
				return e.cfg.Store.Update(ctx, store.AsLoop(sealOp), done)
			}})
		}
	}), nil
}

// signLedger shows the broker that the ledger goes on from the last head that it
// signed, and returns what is to be noted: the signature, or why there is none.
// The broker is asked first, and the ledger read after: so it is no older than what
// another server had signed.
func (e *Engine) signLedger(ctx context.Context, t protocol.TenantID) (note func(*store.Tx) error, err error) {
	last, err := e.cfg.Broker.LastHead(ctx, t)
	if err != nil {
		return nil, err
	}
	req := &brokerv1.SignHeadRequest{AfterSize: last.GetSize()}
	var size int64
	err = e.cfg.Store.View(ctx, store.AsLoop(sealOp), func(tx *store.Tx) (err error) {
		size, err = readHead(tx, t, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	jws, err := e.cfg.Broker.SignHead(ctx, req)
	switch protocol.CodeOf(err) {
	case protocol.CodeDataLoss, protocol.CodeStaleFence, protocol.CodeFailedPrecondition:
		e.cfg.Log.Error("THE BROKER REFUSES TO SIGN THE LEDGER", "tenant", t, "error", err)
		why := err.Error()
		return func(tx *store.Tx) error { return tx.RefuseLedger(t, why) }, nil
	}
	return func(tx *store.Tx) error { return tx.SignLedger(t, size, jws) }, err
}

// readHead fills in a tenant's head, and the proof that it follows the one of
// AfterSize segments. Where that is larger there is none, and the broker says so.
func readHead(tx *store.Tx, t protocol.TenantID, req *brokerv1.SignHeadRequest) (size int64, err error) {
	h, err := tx.Ledger(t)
	if err != nil {
		return 0, err
	}
	if len(h.Root) != len(ledger.Hash{}) {
		return 0, protocol.Errorf(protocol.CodeDataLoss, "the root of the ledger of tenant %s is damaged", t)
	}
	head := ledger.Head{Tenant: t, Size: h.Size, Root: ledger.Hash(h.Root), At: h.At, Epoch: tx.Epoch()}
	if req.Head, err = head.Receipt(); err != nil {
		return 0, err
	}
	proof, err := ledger.ProveFollows(h.Size, req.AfterSize, nodes(tx, t))
	for _, hash := range proof {
		req.Proof = append(req.Proof, hash[:])
	}
	return h.Size, err
}
