package doctor

import (
	"context"
	"fmt"

	"bivouac/server/store"
)

// ledgers says of which tenants the broker refuses to sign the ledger: its witness saw
// a head that the newest one does not follow. The server has each refusal in its own
// words, with the remedy of its kind, from when it asked for the signature last. INV-8.
func (x exam) ledgers(ctx context.Context) {
	var refused []store.LedgerHead
	err := x.Store.View(ctx, store.AsLoop("doctor"), func(tx *store.Tx) (err error) {
		refused, err = tx.RefusedLedgers()
		return err
	})
	if err != nil {
		return // said by database
	}
	for _, h := range refused {
		x.Bad("ledger", h.Refused, fmt.Sprintf("nothing that the ledger of tenant %s holds beyond segment %d is witnessed: who has the database can change it unseen", h.Tenant, h.SignedSize),
			"bivouac-broker ledger show  (where the broker runs: what it saw last); after a restore on purpose: bivouac-broker ledger accept --epoch N  (as bivouac restore printed it)")
	}
	if len(refused) == 0 {
		x.Fine("ledger", "the broker refuses no tenant's ledger")
	}
}
