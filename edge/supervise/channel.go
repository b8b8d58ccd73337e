package supervise

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
)

// errWorkerGone: the worker has ended, well or not.
var errWorkerGone = errors.New("the worker has ended")

// workerGrace is how long a worker that has finished may take to exit.
const workerGrace = 2 * time.Second

// attend runs the worker and serves its requests until it is gone.
func (a *attempt) attend(outer context.Context) error {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(errOver)
	conn, start, err := a.channel()
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error {
		defer conn.Close()
		defer cancel(errWorkerGone)
		return start(ctx)
	})
	g.Go(func() error {
		// One connection, one client, no other will come.
		s := &http2.Server{MaxConcurrentStreams: 16, MaxUploadBufferPerConnection: 1 << 20, MaxUploadBufferPerStream: 1 << 20}
		// Its own pools: those of the package cannot be shared with another bubble.
		if err := http2.ConfigureServer(&http.Server{}, s); err != nil {
			return err
		}
		s.ServeConn(conn, &http2.ServeConnOpts{Context: ctx, Handler: a.hostHandler()})
		a.inflight.Wait()
		return nil
	})
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
		err := a.group.Kill(context.WithoutCancel(ctx))
		conn.Close()
		return err
	})
	return g.Wait()
}

// channel makes the one connection of the worker, and what starts it there.
func (a *attempt) channel() (conn net.Conn, start func(context.Context) error, err error) {
	if f := a.cfg.WorkerFunc; f != nil {
		ours, theirs := net.Pipe()
		return ours, func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, func() { theirs.Close() })
			defer stop()
			if err := f(ctx, theirs); err != nil {
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
	said := &logLines{log: func(line string) { a.cfg.Log.Warn("the worker says", "line", line) }}
	exit, err := a.group.Run(ctx, sandbox.Process{
		Role: sandbox.RoleWorker, Argv: []string{WorkerInside},
		Env:    []string{"GOMAXPROCS=2", "GOMEMLIMIT=48MiB", "GODEBUG=madvdontneed=1"},
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

// logLines passes what a process says to the log, line by line, bounded.
type logLines struct {
	log  func(string)
	part []byte
	said int
}

const maxLogged = 100

func (l *logLines) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	for {
		advance, line, _ := bufio.ScanLines(l.part, len(l.part) > 4096)
		if advance == 0 {
			return len(p), nil
		}
		l.say(line)
		l.part = l.part[advance:]
	}
}

func (l *logLines) flush() {
	if len(l.part) > 0 {
		l.say(l.part)
		l.part = nil
	}
}

func (l *logLines) say(line []byte) {
	if l.said++; l.said <= maxLogged {
		l.log(string(line))
	}
}
