package edge

import (
	"context"
	"time"

	"bivouac/edge/op"
)

// tickProbe looks for QUIC while the link runs over TCP, with decay. When it
// works, a new epoch is taken over it, and then the old connection drains.
func (d *Daemon) tickProbe(ctx context.Context) (bool, error) {
	wait, ok := d.link.NextProbe()
	if !ok || wait > 0 || d.line.get() == nil {
		return false, nil
	}
	moved, err := d.link.Upgrade(ctx, d.settle)
	d.probes.Add(1)
	if err != nil {
		d.log.DebugContext(ctx, "UDP still does not reach the server", "error", err)
		return false, nil // expected on such networks; status shows it
	}
	if moved {
		d.log.InfoContext(ctx, "the link moved back to HTTP/3")
	}
	return false, nil
}

// probeNow is the owner's word that UDP may get through now: it returns when that
// was tried. Where QUIC carries the link already there is nothing to try.
func (d *Daemon) probeNow(ctx context.Context) error {
	if _, ok := d.link.NextProbe(); !ok {
		if d.line.get() == nil {
			d.wakeLink.Ring() // not even TCP: at once instead of after the back-off
		}
		return nil
	}
	tried := d.probes.Load()
	d.link.ProbeNow()
	d.wakeProbe.Ring()
	for d.probes.Load() == tried && op.Sleep(ctx, 10*time.Millisecond) {
		if _, ok := d.link.NextProbe(); !ok {
			return nil
		}
	}
	return context.Cause(ctx)
}

func (d *Daemon) probeIn() time.Duration {
	if wait, ok := d.link.NextProbe(); ok {
		return max(time.Second, min(wait, time.Minute))
	}
	return time.Minute
}
