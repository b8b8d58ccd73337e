package ledger

import (
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"bivouac/edge/protocol"
)

// ProveFollows leads from the tree of the first earlier segments to that of size:
// the proof (RFC 6962, 2.1.2) that the larger has the smaller as its beginning.
func ProveFollows(size, earlier int64, read ReadFunc) ([]Hash, error) {
	if earlier <= 0 || earlier >= size {
		return nil, nil // nothing to lead from, or the same tree
	}
	return tlog.ProveTree(size, earlier, read)
}

// Break is one way in which a head does not follow the last one that was seen.
type Break string

// The breaks.
const (
	// BreakShorter is a ledger that has lost segments which were signed.
	BreakShorter Break = "shorter"
	// BreakFork is a ledger that does not have what was signed as its beginning.
	BreakFork Break = "fork"
	// BreakEarlier is a ledger of a life before the restore that was seen.
	BreakEarlier Break = "earlier-life"
	// BreakRestored is a restored ledger that nobody has accepted yet.
	BreakRestored Break = "restored"
)

// breakRow is what is said of one break.
type breakRow struct {
	code protocol.Code
	why  string
	mend string // what an admin does
}

// breaks is the table of all of them.
var breaks = map[Break]breakRow{
	BreakShorter: {protocol.CodeDataLoss, "it is shorter than what was signed: the server's database is older than it was",
		"stop the servers; if the database was brought back, run bivouac restore --in-place on it, otherwise look for who changed it"},
	BreakFork: {protocol.CodeDataLoss, "it does not go on from what was signed: two databases write this ledger, or one was changed",
		"stop all servers but the right one; if its database was brought back, run bivouac restore --in-place on it; compare exports with bivouac ledger verify"},
	BreakEarlier: {protocol.CodeStaleFence, "it is of the life before a restore, and the restored one was signed already",
		"stop the server that runs on the old database"},
	BreakRestored: {protocol.CodeFailedPrecondition, "the store was restored and what was signed since the backup is gone from it",
		"if you restored it, say so where the broker runs: bivouac-broker ledger accept --epoch %d"},
}

// Refusal is a head that does not follow.
type Refusal struct {
	Break      Break
	Last, Next Head
}

func (r *Refusal) Error() string {
	row := breaks[r.Break]
	mend := row.mend
	if r.Break == BreakRestored {
		mend = fmt.Sprintf(mend, r.Next.Epoch)
	}
	return fmt.Sprintf("the ledger of tenant %s is not signed (%s): %s. Last seen: %s; shown now: %s. What to do: %s",
		r.Next.Tenant, r.Break, row.why, r.Last.brief(), r.Next.brief(), mend)
}

func (h Head) brief() string {
	return fmt.Sprintf("%d segments, root %x, epoch %d, of %s", h.Size, h.Root[:6], h.Epoch, h.At.UTC().Format(time.RFC3339))
}

// Follows refuses a head that does not go on from the last one that was seen of the
// same tenant; the zero Head is none. A store's epoch is of one life: within it a
// ledger only grows. A higher one is a restored store, whose ledger may have lost
// its end; where it has, only a person can accept it, and the error is a Refusal
// of BreakRestored. INV-8.
func (h Head) Follows(last Head, proof []Hash) error {
	switch {
	case last.Size == 0:
		return nil
	case h.Epoch < last.Epoch:
		return refusal(BreakEarlier, last, h)
	case h.grewFrom(last, proof):
		return nil
	case h.Epoch > last.Epoch:
		return refusal(BreakRestored, last, h)
	case h.Size < last.Size:
		return refusal(BreakShorter, last, h)
	}
	return refusal(BreakFork, last, h)
}

func (h Head) grewFrom(last Head, proof []Hash) bool {
	if h.Size == last.Size {
		return h.Root == last.Root
	}
	return h.Size > last.Size && tlog.CheckTree(tlog.TreeProof(proof), h.Size, h.Root, last.Size, last.Root) == nil
}

func refusal(b Break, last, next Head) error {
	return protocol.Errorf(breaks[b].code, "%w", &Refusal{b, last, next})
}
