package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
)

// debtAgain is the wait before what the authority did not take is tried again.
const debtAgain = 15 * time.Second

// debts are revocations that the authority has not been seen to hold. The feed says
// again after every start which grants were revoked, so that one which the authority
// could not take is not forgotten with this process. INV-13, INV-18.
type debts struct {
	mu   sync.Mutex // guards below
	paid map[protocol.GrantID]bool
	open map[protocol.GrantID]error
	bell op.Bell // there may be more
}

func newDebts() *debts {
	return &debts{paid: map[protocol.GrantID]bool{}, open: map[protocol.GrantID]error{}, bell: op.NewBell()}
}

// owe takes up a grant that was revoked here and may live where it is held.
func (d *debts) owe(id protocol.GrantID, why error) {
	d.mu.Lock()
	delete(d.paid, id)
	d.open[id] = why
	d.mu.Unlock()
	d.bell.Ring()
}

// due are those of the revoked grants that are not known as ended.
func (d *debts) due(revoked []protocol.GrantID) (out []protocol.GrantID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out = slices.Collect(maps.Keys(d.open))
	for _, id := range revoked {
		if !d.paid[id] && d.open[id] == nil {
			out = append(out, id)
		}
	}
	return out
}

// settle one, or keep why it is not. first: it was not open before.
func (d *debts) settle(id protocol.GrantID, err error) (first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.paid[id] = true
		delete(d.open, id)
		return false
	}
	_, before := d.open[id]
	d.open[id] = err
	return !before
}

// count of the open ones, and why one of them is.
func (d *debts) count() (n int, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, why = range d.open {
		break
	}
	return len(d.open), why
}

// runDebts ends at the authority what servers say was revoked, until it holds.
func (b *Broker) runDebts(ctx context.Context) error {
	for ctx.Err() == nil {
		for _, id := range b.debts.due(b.feed.RevokedGrants()) {
			g, err := b.ports.Authority.RevokeGrant(ctx, id)
			switch {
			case protocol.CodeOf(err) == protocol.CodeNotFound:
				err = nil // it was never held here, or is forgotten
			case err == nil: // the server may have a receipt that does not show it
				b.ended.add(authority.Ended{Grant: id, At: g.RevokedAt, How: "it was revoked at the broker"})
			}
			if b.debts.settle(id, err) && ctx.Err() == nil {
				b.log.WarnContext(ctx, "a revoked grant is refused here, and may live where it is held", "grant", id, "error", err)
			}
		}
		var again time.Duration // while nothing is open, until the bell
		if n, _ := b.debts.count(); n > 0 {
			again = debtAgain
		}
		b.debts.bell.Wait(ctx, again)
	}
	return nil
}

func (b *Broker) examineDebts(r *finding.Report) {
	if n, why := b.debts.count(); n > 0 {
		r.Bad("revoked", fmt.Sprintf("%d revoked grant(s) are refused here and may live where they are held: %v", n, why),
			"whoever has such a token may use it beside the broker", "bivouac-broker doctor  (says what the authority lacks; the broker goes on trying by itself)")
	}
}
