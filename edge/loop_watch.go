package edge

import (
	"context"
	"fmt"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
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

// fence ends everything because the server said so, and ends the daemon.
func (d *Daemon) fence(ctx context.Context, why error) error {
	if d.leaving.Load() {
		sleep(ctx, watchEvery/10) // its owner's command ends the daemon
		return nil
	}
	for _, a := range d.table.all() {
		d.cutOff(a, protocol.Errorf(protocol.CodePermissionDenied, "%w", why))
	}
	d.awaitQuiet(ctx)
	return &finalError{err: enrolAgain(d.cfg.State, why)}
}

// enrolAgain adds the command that helps, unless the server named it.
func enrolAgain(dir *state.Dir, err error) error {
	return &protocol.Error{Code: protocol.CodeOf(err), Err: err,
		Message: fmt.Sprintf("%v — this machine must enrol again: `%s`, then `%s` with a new code", err, dir.Command("leave --force"), dir.Command("join URL CODE"))}
}

// awaitQuiet waits until no sandbox runs, at most for stopTimeout and a kill.
func (d *Daemon) awaitQuiet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*stopTimeout)
	defer cancel()
	for d.turns.stopping() > 0 && sleep(ctx, 10*time.Millisecond) {
	}
}
