package backup

import (
	"context"
	"errors"
	"os"
	"time"

	"bivouac/edge/lockfile"
	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// ownSecond claims the second of one restore. Restores of one file take turns by a
// lock on it, which ends with its process.
func (c *Copy) ownSecond(ctx context.Context) (now time.Time, err error) {
	f, err := os.Open(c.file)
	if err != nil {
		return now, protocol.Errorf(protocol.CodeInvalidArgument, "the backup cannot be read: %w", err)
	}
	l, err := lockfile.Hold(f)
	for errors.Is(err, lockfile.ErrHeld) {
		select {
		case <-ctx.Done():
			return now, errors.Join(context.Cause(ctx), f.Close())
		case <-time.After(20 * time.Millisecond): // of a second, at most
			l, err = lockfile.Hold(f)
		}
	}
	if err != nil {
		err = protocol.Errorf(protocol.CodeFailedPrecondition, "the backup %s cannot be locked for its restore: %w; copy it to a local disk", c.file, err)
		return now, errors.Join(err, f.Close())
	}
	defer func() { err = errors.Join(err, l.Release()) }()
	return store.OwnSecond(ctx, c.Manifest.Epoch)
}
