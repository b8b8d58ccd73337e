package edge

import (
	"context"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// mostUnwatched are folders whose watch has not begun yet; what is more is found by the
// slow look.
const mostUnwatched = 64

// watchAwaited has an awaited turn looked at when something happens in its directory: it
// is taken, or its supervisor can be asked.
func (d *Daemon) watchAwaited(dir state.Attempt) {
	select {
	case d.unwatched <- dir.Path():
	default:
	}
}

// awaitedChanged reports whether the directory is still of interest.
func (d *Daemon) awaitedChanged(folder string) bool {
	w := d.awaiting.get(protocol.AttemptID(filepath.Base(folder)))
	if w == nil {
		return false
	}
	w.look.Ring()
	return true
}

// WatchFolders calls changed for a folder when its watch begins, and when a file in it is
// made, written, replaced or removed, until that says that it is of no interest any more
// or ctx ends. When the system cannot watch, it returns at once and the slow look
// remains; so it does for a folder that cannot be watched, and for what is missed.
func WatchFolders(ctx context.Context, folders <-chan string, changed func(folder string) bool) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil // out of watches
	}
	defer w.Close()
	told := func(folder string) {
		if !changed(folder) {
			_ = w.Remove(folder) // it may be gone
		}
	}
	for {
		select {
		case folder := <-folders:
			if w.Add(folder) == nil {
				told(folder)
			}
		case ev, ok := <-w.Events:
			if !ok {
				return nil
			}
			told(filepath.Dir(ev.Name))
		case <-w.Errors:
		case <-ctx.Done():
			return nil
		}
	}
}
