package store

import (
	"context"
	"time"

	"bivouac/edge/protocol"
)

// maxBehind is how far the clock may be behind the last epoch: it is waited for.
const maxBehind = 5 * time.Second

// OwnSecond picks the second of a restore after an epoch, waits until it is over,
// and returns it. Whoever picks later picks another one; so two restores that take
// turns, whichever way they end, have different epochs. INV-16.
func OwnSecond(ctx context.Context, last uint32) (time.Time, error) {
	now := time.Now()
	if least := year2000.Add(time.Duration(int64(last)+1) * time.Second); now.Before(least) {
		if least.Sub(now) > maxBehind {
			return now, protocol.Errorf(protocol.CodeFailedPrecondition, "the clock says %s, and what is restored is of a life that began at %s: set the clock of this machine",
				now.UTC().Format(time.RFC3339), least.UTC().Format(time.RFC3339))
		}
		now = least
	}
	over := now.Truncate(time.Second).Add(time.Second)
	wait := time.NewTimer(time.Until(over))
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return now, context.Cause(ctx)
	case <-wait.C:
		return now, nil
	}
}
