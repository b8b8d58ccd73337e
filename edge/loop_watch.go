package edge

import (
	"context"
	"time"

	"bivouac/edge/protocol"
)

// tickWatch looks at every lease, at the owner's switch and at the two clocks:
// timers do not count suspend, so nothing here trusts one.
func (d *Daemon) tickWatch(ctx context.Context) (bool, error) {
	d.noticeSuspend()
	if d.cfg.Supervisors != nil {
		d.cfg.Supervisors.Reap()
	}
	if paused := d.cfg.State.Paused(); paused != d.paused.Load() {
		d.switchTo(paused)
	}
	for _, a := range d.table.all() {
		switch {
		case a.ended.Load():
		case !a.judged.Load():
			// Found by recovery: its supervisor keeps its own clock until the server
			// has said what it knows.
		case a.cut.Load() == nil && a.over():
			d.cutOff(a, protocol.Errorf(protocol.CodeLeaseExpired, "the server did not renew the lease of attempt %s in time", a.id))
		case a.cut.Load() != nil && a.kind == protocol.KindTurn:
			d.watchCut(a)
		}
	}
	return false, nil
}

// noticeSuspend redials at once after the machine slept: the old path is stale,
// and its death would be noticed much later.
func (d *Daemon) noticeSuspend() {
	elapsed, clock := d.cfg.Elapsed(), time.Now()
	if !d.sawClock.IsZero() && elapsed-d.sawElapsed > clock.Sub(d.sawClock)+suspendGap {
		d.log.Info("the machine slept; the link is made anew", "for", elapsed-d.sawElapsed)
		d.link.Drop()
		d.wakeLink.Ring()
	}
	d.sawElapsed, d.sawClock = elapsed, clock
}

// switchTo obeys the owner's switch. Pausing needs no network: authority of
// everything ends here and now; the server learns of it when it can.
func (d *Daemon) switchTo(paused bool) {
	d.paused.Store(paused)
	d.log.Info("the owner switched this machine", "paused", paused)
	if paused {
		for _, a := range d.table.all() {
			d.cutOff(a, protocol.Errorf(protocol.CodePermissionDenied, "the owner has paused this machine"))
		}
	}
	d.announced.Store(false)
	d.wakeAnnounce.Ring()
}
