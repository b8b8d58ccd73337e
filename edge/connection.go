package edge

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// connection is one epoch of this runner's connection row at the server: from
// Connect until its stream ends.
type connection struct {
	epoch  int64
	stream *connect.ServerStreamForClient[runnerv1.AttachResponse]
	ctx    context.Context
	cancel context.CancelCauseFunc
	quiet  *time.Timer // ends it when nothing comes
	heard  bool        // something came: the link works
	first  *runnerv1.AttachResponse
	// unread: the stream is nobody's, so whoever drops the connection closes it. Once
	// the link loop reads it, that does.
	unread atomic.Bool
}

// hear waits for the first word.
func (c *connection) hear() bool {
	if !c.stream.Receive() {
		return false
	}
	c.first = c.stream.Msg()
	return true
}

// next is what the server said, in order; ok is false at the end of the stream.
func (c *connection) next() (m *runnerv1.AttachResponse, ok bool) {
	if m, c.first = c.first, nil; m == nil {
		if !c.stream.Receive() {
			return nil, false
		}
		m = c.stream.Msg()
	}
	c.quiet.Reset(silence)
	return m, c.ctx.Err() == nil
}

// single lets one caller at a time do what takes a while.
type single chan struct{}

func (s single) enter(ctx context.Context) bool {
	select {
	case s <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// take waits without an end: for what takes a moment.
func (s single) take() { s <- struct{}{} }

func (s single) leave() { <-s }

// line is the current connection, and who waits for one.
type line struct {
	mu      sync.Mutex // guards the fields below
	current *connection
	changed chan struct{} // closed when current changes
}

func (l *line) get() *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// wait returns the current connection, or waits for one until ctx ends.
func (l *line) wait(ctx context.Context) (*connection, error) {
	for {
		l.mu.Lock()
		c := l.current
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		if c != nil {
			return c, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// replace makes c the current connection and returns the one before.
func (l *line) replace(c *connection) (old *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, l.current = l.current, c
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	return old
}

// drop ends a connection; the link loop makes the next one.
func (l *line) drop(c *connection, cause error) {
	l.mu.Lock()
	if l.current == c {
		l.current = nil
	}
	l.mu.Unlock()
	c.quiet.Stop()
	c.cancel(cause)
	if c.unread.CompareAndSwap(true, false) {
		c.stream.Close()
	}
}

// call bounds one unary call and gives its error our code.
func call[Req, Res any](ctx context.Context, do func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, protocol.Errorf(protocol.CodeUnavailable, "the server did not answer in %s", callTimeout))
	defer cancel()
	res, err := do(ctx, req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, protocol.FromConnect(err)
	}
	return res, nil
}

// forgotten reports a server that does not know this runner any more: no retry
// helps. An error of this side, such as a peer that is not the right one, is
// not the server's word.
func forgotten(err error) bool {
	var ce *connect.Error
	if !errors.As(err, &ce) || !connect.IsWireError(ce) {
		return false
	}
	switch protocol.CodeOf(err) {
	case protocol.CodePermissionDenied, protocol.CodeNotFound, protocol.CodeUnauthenticated:
		return true
	}
	return false
}

// transient reports an error that another try may mend. A server that cannot say
// whether it committed is one: every call of a runner may be made again.
func transient(err error) bool {
	switch protocol.CodeOf(err) {
	case protocol.CodeUnavailable, protocol.CodeDeadlineExceeded, protocol.CodeCancelled,
		protocol.CodeRateLimited, protocol.CodeQueueFull, protocol.CodeInternal, protocol.CodeOutcomeUnknown:
		return true
	}
	return false
}
