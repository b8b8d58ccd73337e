package link

import (
	"sync"
	"sync/atomic"
	"time"
)

// idleWatch calls a function when nothing moved for a while. Moving costs one
// store: the timer looks later.
type idleWatch struct {
	after time.Duration
	last  atomic.Int64 // since began
	began time.Time

	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	over  bool
}

// newIdleWatch is nil when after is zero; a nil watch does nothing.
func newIdleWatch(after time.Duration) *idleWatch {
	if after <= 0 {
		return nil
	}
	return &idleWatch{after: after, began: time.Now()}
}

// start begins to watch; reap is called once nothing has moved for long enough.
func (w *idleWatch) start(reap func()) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.after, func() { w.look(reap) })
}

func (w *idleWatch) moved() {
	if w != nil {
		w.last.Store(int64(time.Since(w.began)))
	}
}

func (w *idleWatch) look(reap func()) {
	left := w.after - (time.Since(w.began) - time.Duration(w.last.Load()))
	w.mu.Lock()
	over := w.over
	if !over && left > 0 {
		w.timer.Reset(left)
	}
	w.mu.Unlock()
	if !over && left <= 0 {
		reap()
	}
}

func (w *idleWatch) stop() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}
