package sshtest

import (
	"net"
	"sync"
)

// buffered is a connection whose writes do not wait for a reader, as those of TCP do
// not: both sides of SSH begin by writing.
type buffered struct {
	net.Conn
	mu     sync.Mutex // guards below
	some   *sync.Cond
	queue  []byte
	closed bool
	failed error
}

func newBuffered(c net.Conn, all *sync.WaitGroup) *buffered {
	b := &buffered{Conn: c}
	b.some = sync.NewCond(&b.mu)
	all.Go(b.flush)
	return b
}

func (b *buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed != nil || b.closed {
		return 0, net.ErrClosed
	}
	for len(b.queue) > 1<<20 && b.failed == nil && !b.closed {
		b.some.Wait()
	}
	b.queue = append(b.queue, p...)
	b.some.Broadcast()
	return len(p), nil
}

// Close once everything is written, or cannot be.
func (b *buffered) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.some.Broadcast()
	return nil
}

func (b *buffered) flush() {
	defer b.Conn.Close()
	for {
		b.mu.Lock()
		for len(b.queue) == 0 && !b.closed {
			b.some.Wait()
		}
		next := b.queue
		b.queue = nil
		b.some.Broadcast()
		b.mu.Unlock()
		if len(next) == 0 {
			return
		}
		if _, err := b.Conn.Write(next); err != nil {
			b.mu.Lock()
			b.failed = err
			b.some.Broadcast()
			b.mu.Unlock()
			return
		}
	}
}
