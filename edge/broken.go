package edge

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// watchJournal ends the daemon when its journal failed. What the kernel dropped with a
// failed fsync cannot be known by this process: it claims, begins and answers nothing
// any more, and only who reads the disk again can tell what is on it. So the daemon
// ends, its service manager starts the next one, and that one inspects what was begun
// (INV-4, INV-5). Turns go on under their supervisors, which have journals of their own.
func (d *Daemon) watchJournal(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.actions.journal.Failed():
	}
	err := d.actions.journal.Err()
	d.problems.note("journal", err)
	saved := d.cfg.State.SaveEnded(state.Ended{At: time.Now(), Why: err.Error()})
	d.log.Error("the journal failed, and this daemon ends: started again, it goes on from what is on the disk", "error", err, "note", saved,
		"doctor", d.cfg.State.Command("doctor"))
	return protocol.Errorf(protocol.CodeDataLoss, "%w; turns go on under their supervisors, and bivouac-edge takes them up when it is started again: %s", err, d.cfg.State.Command("run"))
}
