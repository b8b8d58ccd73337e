package engine

import (
	"sync"

	"bivouac/edge/protocol"
)

// links are the runners that talk to this replica, each by the epoch of its
// connection row.
type links struct {
	mu    sync.Mutex // guards byRun
	byRun map[protocol.RunnerID]*link
}

type link struct {
	epoch int64
	// here is true from the first look into the mailbox until the transport is
	// gone: a call to Connect alone offers nothing. The row stays this replica's.
	here       bool
	thumbprint string
	// holds are the attempts that the runner said it has, at its last connect, and
	// those that it claimed since.
	holds map[protocol.AttemptID]bool
}

func newLinks() *links { return &links{byRun: map[protocol.RunnerID]*link{}} }

// take replaces an earlier epoch's link.
func (l *links) take(r protocol.RunnerID, epoch int64, thumbprint string, holds []protocol.AttemptID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.byRun[r]; old != nil && old.epoch > epoch {
		return
	}
	n := &link{epoch: epoch, thumbprint: thumbprint, holds: map[protocol.AttemptID]bool{}}
	for _, id := range holds {
		n.holds[id] = true
	}
	l.byRun[r] = n
}

// current refuses an epoch that is not the newest that this replica took. The
// runner then connects again.
func (l *links) current(r protocol.RunnerID, epoch int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.byRun[r]; n == nil || n.epoch != epoch {
		return protocol.Errorf(protocol.CodeStaleFence, "connection epoch %d of runner %s is not the current one: connect again", epoch, r)
	}
	return nil
}

// arrive marks a runner as attached and reports whether it was not.
func (l *links) arrive(r protocol.RunnerID, epoch int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.byRun[r]
	if n == nil || n.epoch != epoch || n.here {
		return false
	}
	n.here = true
	return true
}

// leave marks the transport of an epoch as gone.
func (l *links) leave(r protocol.RunnerID, epoch int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.byRun[r]
	if n == nil || n.epoch != epoch {
		return false
	}
	n.here = false
	return true
}

// drop forgets a runner that talks to another replica by now: what it still says here
// under that epoch is stale_fence.
func (l *links) drop(r protocol.RunnerID, epoch int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.byRun[r]; n != nil && n.epoch == epoch {
		delete(l.byRun, r)
	}
}

// claimed adds what a runner takes after it connected: its connect is no evidence
// about that. INV-18.
func (l *links) claimed(r protocol.RunnerID, a protocol.AttemptID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.byRun[r]; n != nil {
		n.holds[a] = true
	}
}

// lacks reports a runner that connected here, did not name the attempt among those
// that it holds, and did not claim it since.
func (l *links) lacks(r protocol.RunnerID, a protocol.AttemptID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.byRun[r]
	return n != nil && !n.holds[a]
}

// epochs that count here: of the runners that are attached, and of those whose
// transport is gone.
func (l *links) epochs() (attached, away map[protocol.RunnerID]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	attached, away = map[protocol.RunnerID]int64{}, map[protocol.RunnerID]int64{}
	for r, n := range l.byRun {
		if n.here {
			attached[r] = n.epoch
		} else {
			away[r] = n.epoch
		}
	}
	return attached, away
}
