package edge

import (
	"context"

	"bivouac/edge/protocol/runnerv1"
)

// tickAnnounce tells the server what changed since it was told: the owner paused
// or resumed. On a new connection Connect carries it.
func (d *Daemon) tickAnnounce(ctx context.Context) (bool, error) {
	c := d.line.get()
	if c == nil || d.announced.Swap(true) {
		return false, nil
	}
	// Pausing is announced when it is true: nothing runs here any more.
	if d.paused.Load() {
		d.awaitQuiet(ctx)
	}
	_, err := call(ctx, d.client.Announce, &runnerv1.AnnounceRequest{Epoch: c.epoch, Facts: d.factsNow()})
	if err != nil {
		d.announced.Store(false)
		return false, d.superseded(c, err)
	}
	return false, nil
}
