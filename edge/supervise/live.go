package supervise

import "sync"

// live hands text deltas to whoever listens now. Nothing is kept: a listener
// that is too slow misses some.
type live struct {
	mu        sync.Mutex // guards listeners
	listeners map[chan string]struct{}
}

func newLive() *live { return &live{listeners: map[chan string]struct{}{}} }

func (l *live) send(delta string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.listeners {
		select {
		case c <- delta:
		default:
		}
	}
}

func (l *live) listen() (deltas <-chan string, stop func()) {
	c := make(chan string, 256)
	l.mu.Lock()
	l.listeners[c] = struct{}{}
	l.mu.Unlock()
	return c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.listeners, c)
	}
}
