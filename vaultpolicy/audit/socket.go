package audit

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
)

// maxWriters connect at a time: each server has one device.
const maxWriters = 16

// Socket is a unix socket to which a server's socket device writes. It reads whatever
// comes, at once, and answers nothing.
type Socket struct {
	Path   string
	Reader Reader
	Log    *slog.Logger
}

// Run listens until ctx ends. woken is called for every line that matters, one at a
// time. What keeps it from listening is logged and tried again.
func (s Socket) Run(ctx context.Context, woken func(Change)) error {
	for ctx.Err() == nil {
		err := s.serve(ctx, woken)
		if ctx.Err() != nil {
			break
		}
		s.Log.WarnContext(ctx, "the audit socket is not served, polling goes on", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	}
	return nil
}

func (s Socket) serve(ctx context.Context, woken func(Change)) error {
	l, err := listen(s.Path)
	if err != nil {
		return err
	}
	var one sync.Mutex
	tell := func(c Change) {
		one.Lock()
		defer one.Unlock()
		woken(c)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxWriters + 1)
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	g.Go(func() error {
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			if !g.TryGo(func() error { s.read(ctx, c, tell); return nil }) {
				c.Close() // more writers than servers
			}
		}
	})
	return g.Wait()
}

// read everything that one writer says. What it said before it came was missed.
func (s Socket) read(ctx context.Context, c net.Conn, woken func(Change)) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	defer c.Close()
	woken(Change{Matter: Tokens})
	woken(Change{Matter: Index})
	split := lines(s.Reader, woken)
	buffer := make([]byte, 64<<10)
	for {
		n, err := c.Read(buffer)
		split.feed(buffer[:n])
		if err != nil {
			return
		}
	}
}

// listen takes the place of a socket that nobody serves any more.
func listen(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "audit: %s is there and no socket: remove it, or name another", path)
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close() // it was only asked whether somebody is there
			return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "audit: another process serves %s", path)
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil { // the server's group writes to it
		l.Close() // it was not served
		return nil, err
	}
	return l, nil
}
