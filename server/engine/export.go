package engine

import (
	"context"
	"io"

	"bivouac/edge/protocol"
	"bivouac/server/ledger"
	"bivouac/server/session"
	"bivouac/server/store"
)

// exportPage bounds what one transaction of an export reads.
const exportPage = 500

// ExportLedger writes the caller's own sealed events, of one session or of all,
// with their proofs under the newest signed head. What is sealed after it began
// is not part of it. INV-8, INV-9.
func (e *Engine) ExportLedger(ctx context.Context, c store.Caller, only protocol.SessionID, w io.Writer) error {
	x := &export{e: e, ctx: ctx, caller: c}
	if err := x.begin(only, w); err != nil {
		return err
	}
	if only != "" {
		if err := x.session(only); err != nil {
			return err
		}
		return x.out.Close()
	}
	for cursor := ""; ; {
		var page []session.Session
		if err := x.view(func(tx *store.Tx) (err error) {
			page, cursor, err = tx.Sessions(exportPage, cursor)
			return err
		}); err != nil {
			return err
		}
		for _, s := range page {
			if err := x.session(s.ID); err != nil {
				return err
			}
		}
		if cursor == "" {
			return x.out.Close()
		}
	}
}

// export is one export under way.
type export struct {
	e      *Engine
	ctx    context.Context
	caller store.Caller
	head   store.LedgerHead
	out    *ledger.Writer
}

func (x *export) view(fn func(tx *store.Tx) error) error {
	return x.e.cfg.Store.View(x.ctx, x.caller, fn)
}

func (x *export) begin(only protocol.SessionID, w io.Writer) error {
	err := x.view(func(tx *store.Tx) (err error) {
		if only != "" {
			if _, err := tx.Session(only); err != nil {
				return err
			}
		}
		if x.head, err = tx.Ledger(x.caller.Tenant()); notFound(err) {
			return nil // nothing is sealed yet
		}
		return err
	})
	if err != nil {
		return err
	}
	if x.head.SignedSize == 0 {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "nothing is sealed and signed yet: that happens within seconds while a broker runs; bivouac ledger show says how far it is")
	}
	x.out = ledger.NewWriter(w, x.head.Receipt)
	return nil
}

// session writes the sealed segments of one session, each with its events.
func (x *export) session(id protocol.SessionID) error {
	for after := int64(0); ; {
		var segments []store.SealedSegment
		var proofs [][]ledger.Hash
		err := x.view(func(tx *store.Tx) (err error) {
			proofs = nil
			if segments, err = tx.Segments(id, after, x.head.SignedSize, exportPage); err != nil {
				return err
			}
			read := nodes(tx, x.head.Tenant)
			for _, s := range segments {
				p, err := ledger.Prove(x.head.SignedSize, s.N, read)
				if err != nil {
					return err
				}
				proofs = append(proofs, p)
			}
			return nil
		})
		if err != nil || len(segments) == 0 {
			return err
		}
		for i, s := range segments {
			if err := x.out.Segment(s.N, ledger.Segment{Session: s.Session, From: s.From, To: s.To, Hash: s.Hash}, proofs[i]); err != nil {
				return err
			}
			if err := x.events(s); err != nil {
				return err
			}
			after = s.From
		}
	}
}

func (x *export) events(s store.SealedSegment) error {
	for after := s.From - 1; after < s.To; {
		var page []session.Stored
		if err := x.view(func(tx *store.Tx) (err error) {
			page, err = tx.Chain(s.Session, after, s.To, exportPage)
			return err
		}); err != nil {
			return err
		}
		if len(page) == 0 {
			return protocol.Errorf(protocol.CodeDataLoss, "event %d of session %s was sealed and is gone: restore the store from a backup", after+1, s.Session)
		}
		for _, ev := range page {
			if err := x.out.Event(ev.Bytes, ev.Hash); err != nil {
				return err
			}
		}
		after += int64(len(page))
	}
	return nil
}
