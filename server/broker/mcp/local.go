package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/server/broker/gateway"
)

// Local is a server that is a program of the broker's machine. Each session starts it
// anew in a sandbox of its own and ends it with everything it started: no network, no
// environment of the broker's, a read-only root, a scratch directory in memory, and
// no credential (INV-12).
type Local struct {
	// Command, with an absolute path first.
	Command []string
	// ReadOnly folders of the machine are shown at the same place.
	ReadOnly []string
	// Limits of one session; Timeout and OutputBytes come from Bounds.
	Limits sandbox.Limits
	// MaxOpen sessions at a time.
	MaxOpen int
}

// DefaultLocal are the bounds where broker.hcl says nothing.
var DefaultLocal = Local{MaxOpen: 4, Limits: sandbox.Limits{MemoryBytes: 512 << 20, CPUMillis: 1000, PIDs: 64, DiskBytes: 64 << 20}}

// scratch is the one place inside that can be written.
const scratch = "/tmp"

// environment of every server: what programs expect, and nothing of this machine's.
var environment = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + scratch, "TMPDIR=" + scratch, "LANG=C.UTF-8"}

// serverDir holds a command that the sandbox does not show by itself.
const serverDir = "/server"

// shown are the places that a sandbox of code has of the machine.
var shown = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

func within(path string, dirs []string) bool {
	for _, d := range dirs {
		if path == d || strings.HasPrefix(path, d+"/") {
			return true
		}
	}
	return false
}

// process is what a sandbox is asked for.
func (l Local) process() sandbox.Process {
	p := sandbox.Process{Role: sandbox.RoleCode, Argv: append([]string(nil), l.Command...), Env: environment, Dir: scratch}
	for _, dir := range l.ReadOnly {
		p.Binds = append(p.Binds, sandbox.Bind{Host: dir, Inside: dir})
	}
	if len(p.Argv) > 0 && !within(p.Argv[0], append(l.ReadOnly, shown...)) {
		inside := serverDir + "/" + filepath.Base(p.Argv[0])
		p.Binds = append(p.Binds, sandbox.Bind{Host: p.Argv[0], Inside: inside})
		p.Argv[0] = inside
	}
	return p
}

// Usable refuses a machine without a sandbox that holds what it promises.
func Usable(r sandbox.Report) error {
	if r.Boundary != "" && r.Limits != "" {
		return nil
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "this machine has no sandbox to run it in: %s; or run the server by itself, as streamable HTTP, and name its url", r.Problem)
}

// runner starts the sessions of one local server.
type runner struct {
	local   Local
	backend sandbox.Backend
	id      string   // of groups, without the number
	free    chan int // numbers
}

func newRunner(name, id string, l Local, b sandbox.Backend) *runner {
	r := &runner{local: l, backend: b, id: "mcp-" + id + "-" + name, free: make(chan int, l.MaxOpen)}
	for n := range l.MaxOpen {
		r.free <- n
	}
	return r
}

// program is one run of a server.
type program struct {
	group sandbox.Group
	in    *io.PipeWriter
	lines chan []byte // of its standard output; closed when it has ended
	stop  context.CancelFunc
	done  chan struct{} // closed when nobody reads any more
	once  sync.Once
	run   sync.WaitGroup
	free  func()

	mu   sync.Mutex // guards below
	said []byte     // the last of its standard error
	lie  error      // what ended it on our side
	exit sandbox.Exit
	err  error
}

// start a server. Its error says that nothing was called.
func (r *runner) start(ctx context.Context, most int, timeout time.Duration) (*program, error) {
	var n int
	select {
	case n = <-r.free:
	default:
		return nil, protocol.Errorf(protocol.CodeRateLimited, "%d calls of this server are under way, which is max_open in broker.hcl: try again", r.local.MaxOpen)
	}
	limits := r.local.Limits
	// Everything that a session may write, list and answer, and time to end it from here.
	limits.OutputBytes, limits.Timeout = int64(4*most), timeout+gateway.DefaultTimeout
	id := fmt.Sprintf("%s-%d", r.id, n)
	group, err := r.backend.Group(ctx, id, limits)
	if protocol.CodeOf(err) == protocol.CodeAlreadyExists { // of a broker that died
		if err = r.backend.Clear(ctx, id); err == nil {
			group, err = r.backend.Group(ctx, id, limits)
		}
	}
	if err != nil {
		r.free <- n
		return nil, err
	}
	theirs, in := io.Pipe()
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	p := &program{group: group, in: in, lines: make(chan []byte, 16), stop: stop, done: make(chan struct{}), free: func() { r.free <- n }}
	spec := r.local.process()
	spec.Stdin, spec.Stdout, spec.Stderr = theirs, &lineWriter{p: p, most: most}, tail{p}
	p.run.Go(func() {
		exit, err := group.Run(run, spec)
		p.mu.Lock()
		p.exit, p.err = exit, err
		p.mu.Unlock()
		theirs.CloseWithError(io.ErrClosedPipe) // a write to it ends
		close(p.lines)
	})
	return p, nil
}

// closeTimeout bounds the end of a group.
const closeTimeout = 10 * time.Second

// close ends the server with all that it started, and waits until nothing is left.
func (p *program) close() {
	p.once.Do(func() {
		close(p.done)
		p.in.Close()
		p.stop()
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = p.group.Close(ctx) // what cannot be removed is cleared before its number is used again
		p.run.Wait()
		p.free()
	})
}

// write one message. n says how much of it was taken.
func (p *program) write(ctx context.Context, body []byte) (n int, err error) {
	defer context.AfterFunc(ctx, func() { p.in.CloseWithError(context.Cause(ctx)) })()
	return p.in.Write(append(append([]byte(nil), body...), '\n'))
}

// next line of its standard output.
func (p *program) next(ctx context.Context) ([]byte, error) {
	select {
	case line, ok := <-p.lines:
		if !ok {
			return nil, p.ended()
		}
		return line, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ended says how a server that does not answer any more came to its end.
func (p *program) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var coded *protocol.Error
	switch e := p.exit; {
	case p.lie != nil:
		return p.lie
	case e.OutputLimit:
		return violated("it wrote more than a session may: max_answer_kib in broker.hcl")
	case e.OutOfMemory:
		return violated("it used more memory than memory_mib in broker.hcl")
	case e.TooManyPIDs:
		return violated("it started more processes than pids in broker.hcl")
	case e.Timeout, e.Killed:
		return &brokenError{errors.New("it was ended")}
	case errors.As(p.err, &coded):
		return coded
	case p.err != nil:
		return &brokenError{p.err}
	}
	text := fmt.Sprintf("it ended by itself with code %d", p.exit.Code)
	if last := strings.TrimSpace(tidy(string(p.said))); last != "" {
		text += ", after the words: " + last
	}
	return violated("%s", text[:min(len(text), maxWords)])
}

// lineWriter gets a server's standard output and hands it over line by line.
type lineWriter struct {
	p    *program
	most int
	part []byte
}

func (w *lineWriter) Write(b []byte) (int, error) {
	for rest := b; ; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			w.part = append(w.part, rest...)
			return len(b), w.bounded(len(w.part))
		}
		line := append(w.part, rest[:i]...)
		w.part, rest = nil, rest[i+1:]
		if err := w.bounded(len(line)); err != nil {
			return 0, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		select {
		case w.p.lines <- line:
		case <-w.p.done:
			return 0, io.ErrClosedPipe
		}
	}
}

func (w *lineWriter) bounded(n int) error {
	if n <= w.most {
		return nil
	}
	lie := violated("its answer has more than %d bytes: max_answer_kib in broker.hcl", w.most)
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.p.lie = lie
	return lie
}

// tail keeps the last of a server's standard error, for whoever asks why it ended.
type tail struct{ p *program }

const maxTail = 1 << 10

func (t tail) Write(b []byte) (int, error) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	t.p.said = append(t.p.said, b[max(0, len(b)-maxTail):]...)
	t.p.said = t.p.said[max(0, len(t.p.said)-maxTail):]
	return len(b), nil
}
