package supervise

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
)

// errWorkerGone: the worker has ended, well or not.
var errWorkerGone = errors.New("the worker has ended")

// workerGrace is how long a worker that has finished may take to exit.
const workerGrace = 2 * time.Second

// attend runs the worker and serves its requests until it is gone. The worker starts
// while its workspace is made; what it asks for is read when that stands.
func (a *attempt) attend(outer context.Context) error {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(errOver)
	conn, start, err := a.channel()
	if err != nil {
		return err
	}
	// One connection, one client, no other will come.
	server := &http.Server{
		Handler: a.hostHandler(), Protocols: plainHTTP2(), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 16},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(a.cfg.Log.Handler(), slog.LevelDebug),
	}
	var unmade error // why there is no workspace
	var g errgroup.Group
	g.Go(func() error {
		defer cancel(errWorkerGone)
		return start(ctx)
	})
	g.Go(func() error {
		defer a.leave()
		if err := a.begin(ctx); err != nil {
			if ctx.Err() == nil { // who ended it has the better word
				unmade = err
				cancel(err)
			}
			conn.Close() // the worker ends of that too
			return nil
		}
		if err := server.Serve(newSole(conn)); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error { return a.serveDoors(ctx) })
	g.Go(func() error {
		select {
		case <-a.finished.c:
			grace := time.NewTimer(workerGrace)
			defer grace.Stop()
			select {
			case <-grace.C:
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
		cancel(errOver)
		a.relay.Close(context.Cause(ctx))
		err := a.move(context.WithoutCancel(ctx), sandbox.StateKilled, "the attempt is over")
		return errors.Join(err, server.Close())
	})
	err = g.Wait()
	return cmp.Or(unmade, err)
}

// sole is a listener of one connection that exists already.
type sole struct {
	conn   chan net.Conn
	addr   net.Addr
	closed mark
	whole  net.Conn
}

func newSole(conn net.Conn) *sole {
	s := &sole{conn: make(chan net.Conn, 1), addr: conn.LocalAddr(), closed: newMark(), whole: conn}
	s.conn <- conn
	return s
}

func (s *sole) Accept() (net.Conn, error) {
	select {
	case c := <-s.conn:
		return c, nil
	case <-s.closed.c:
		return nil, net.ErrClosed
	}
}

// Close closes the connection too: it may not have been accepted yet.
func (s *sole) Close() error {
	s.closed.fire()
	s.whole.Close()
	return nil
}

func (s *sole) Addr() net.Addr { return s.addr }

// channel makes the one connection of the worker, and what starts it there.
func (a *attempt) channel() (conn net.Conn, start func(context.Context) error, err error) {
	if f := a.cfg.WorkerFunc; f != nil {
		ours, theirs := net.Pipe()
		return ours, func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, func() { theirs.Close() })
			defer stop()
			if err := f(ctx, heldConn{theirs, ctx, &a.hold.still}); err != nil {
				a.cfg.Log.Warn("the worker ended badly", "error", err)
			}
			return errWorkerGone
		}, nil
	}
	conn, socket, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	return conn, func(ctx context.Context) error {
		defer socket.Close()
		return a.startWorker(ctx, socket)
	}, nil
}

// heldConn is the channel of a worker that is a function: while the attempt is
// held, it can read and write as little as a frozen process.
type heldConn struct {
	net.Conn
	ctx   context.Context // of the worker
	still *sandbox.Standstill
}

func (c heldConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if held := c.still.Moving(c.ctx); held != nil {
		return 0, held
	}
	return n, err
}

func (c heldConn) Write(p []byte) (int, error) {
	if err := c.still.Moving(c.ctx); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// socketPair is a connection and the descriptor of its other end.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "channel"), os.NewFile(uintptr(fds[1]), "channel of the worker")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// WorkerInside is where sandboxes see the worker's binary; `WorkerInside tool NAME`
// runs one workspace tool.
const WorkerInside = "/bivouac-worker"

// startWorker runs the worker in sandbox A: its binary and one socket. The
// environment holds numbers for Go's runtime and nothing else (INV-12).
func (a *attempt) startWorker(ctx context.Context, socket *os.File) error {
	said := &logLines{log: func(line string) {
		a.cfg.Log.Warn("the worker says", "line", line)
		faultSaid(line)
	}}
	exit, err := a.group.Run(ctx, sandbox.Process{
		Role: sandbox.RoleWorker, Argv: []string{WorkerInside},
		Env:    append(faultEnv(), "GOMAXPROCS=2", "GOMEMLIMIT=48MiB", "GODEBUG=madvdontneed=1"),
		Binds:  []sandbox.Bind{{Host: a.cfg.WorkerPath, Inside: WorkerInside}},
		Socket: socket, Stdout: io.Discard, Stderr: said,
	})
	said.flush()
	switch {
	case err != nil && ctx.Err() == nil:
		return err // it could not be started
	case exit.OutOfMemory:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the worker was ended because the attempt's memory (%d MiB) was used up", a.limits.attempt.MemoryBytes>>20)
	case exit.Code != 0 || exit.Signal != "":
		a.cfg.Log.Warn("the worker ended badly", "exit", exit.Code, "signal", exit.Signal)
	}
	return errWorkerGone
}
