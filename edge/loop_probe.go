package edge

import (
	"context"
	"time"
)

// tickProbe looks for QUIC while the link runs over TCP, with decay. When it
// works, a new epoch is taken over it, and then the old connection drains.
func (d *Daemon) tickProbe(ctx context.Context) (bool, error) {
	wait, ok := d.link.NextProbe()
	if !ok || wait > 0 || d.line.get() == nil {
		return false, nil
	}
	moved, err := d.link.Upgrade(ctx, d.settle)
	if err != nil {
		d.log.DebugContext(ctx, "UDP still does not reach the server", "error", err)
		return false, nil // expected on such networks; status shows it
	}
	if moved {
		d.log.InfoContext(ctx, "the link moved back to HTTP/3")
	}
	return false, nil
}

func (d *Daemon) probeIn() time.Duration {
	if wait, ok := d.link.NextProbe(); ok {
		return max(time.Second, min(wait, time.Minute))
	}
	return time.Minute
}
