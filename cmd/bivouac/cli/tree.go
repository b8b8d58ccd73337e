package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
)

// tree is the processes of bivouac dev: started in order, ended in the opposite
// one, and none outlives it.
type tree struct {
	logs string
	bin  string

	mu     sync.Mutex // guards the fields below
	procs  []*proc
	ending bool
	lost   *proc         // the first that ended by itself
	gone   chan struct{} // closed when there is one
}

type proc struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // valid after done
}

func newTree(logs string) (*tree, error) {
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "the state directory cannot be made: %w", durable.Full(logs, err))
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return &tree{logs: logs, bin: filepath.Dir(self), gone: make(chan struct{})}, nil
}

// command prepares a sibling binary with an environment that holds nothing but
// what a process needs.
func (t *tree) command(name string, args ...string) (*exec.Cmd, error) {
	path := filepath.Join(t.bin, name)
	if _, err := os.Stat(path); err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "%s is not beside bivouac in %s: run make build", name, t.bin)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool {
		return !keepEnv(e)
	})
	cmd.SysProcAttr = childAttr()
	return cmd, nil
}

func keepEnv(e string) bool {
	for _, name := range []string{"PATH=", "HOME=", "TMPDIR=", "LANG=", "XDG_RUNTIME_DIR=", "BIVOUAC_FAULT=", "BIVOUAC_FAULT_FILE="} {
		if len(e) >= len(name) && e[:len(name)] == name {
			return true
		}
	}
	return false
}

// once runs a command to its end; its own words are the error.
func (t *tree) once(ctx context.Context, name string, args ...string) error {
	out, err := t.output(ctx, name, args...)
	if err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s %s failed: %s", name, args[0], lastLines(out, err))
	}
	return nil
}

func (t *tree) output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd, err := t.command(name, args...)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	err = cmd.Wait()
	return out.Bytes(), errors.Join(err, context.Cause(ctx))
}

func lastLines(out []byte, err error) string {
	out = bytes.TrimSpace(out)
	if len(out) == 0 {
		return err.Error()
	}
	if len(out) > 2000 {
		out = out[len(out)-2000:]
		if _, whole, ok := bytes.Cut(out, []byte("\n")); ok {
			out = whole // lines, not the end of one
		}
	}
	return withoutCode(string(out))
}

// withoutCode leaves out the code that a process ends its last words with: whoever
// passes them on ends with its own.
func withoutCode(words string) string {
	i := strings.LastIndex(words, " [")
	if i < 0 || !strings.HasSuffix(words, "]") {
		return words
	}
	if _, ok := protocol.Codes[protocol.Code(words[i+2:len(words)-1])]; !ok {
		return words
	}
	return words[:i]
}

// spawn starts a process that runs until end.
func (t *tree) spawn(name string, args ...string) error {
	_, err := t.start(t.lose, name, args...)
	return err
}

// lose keeps the first process that ended before it was asked to.
func (t *tree) lose(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ending && t.lost == nil {
		t.lost = p
		close(t.gone)
	}
}

// failure names the first process that ended by itself, with the end of its log; nil
// when none has.
func (t *tree) failure() error {
	t.mu.Lock()
	p := t.lost
	t.mu.Unlock()
	if p == nil {
		return nil
	}
	how := "ended by itself"
	if p.err != nil {
		how = "ended: " + p.err.Error()
	}
	if err := room(t.logs); err != nil {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s %s: %w", p.name, how, err)
	}
	return protocol.Errorf(protocol.CodeUnavailable, "%s %s; its log ends with:\n%s", p.name, how, tail(p.log))
}

// room tries to write a little in a directory. On a full disk a process could not even
// write why it ended.
func room(dir string) error {
	f, err := os.CreateTemp(dir, ".room-*")
	if err == nil {
		_, err = f.Write(make([]byte, 64<<10))
		err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	if !durable.IsFull(err) {
		return nil
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be written: %w", dir, durable.Full(dir, err))
}

// start is spawn for a process whose end is somebody else's matter: ended is
// told, once.
func (t *tree) start(ended func(*proc), name string, args ...string) (*proc, error) {
	cmd, err := t.command(name, args...)
	if err != nil {
		return nil, err
	}
	p := &proc{name: name, cmd: cmd, log: filepath.Join(t.logs, name+".log"), done: make(chan struct{})}
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
		ended(p)
	}()
	t.mu.Lock()
	t.procs = append(t.procs, p)
	t.mu.Unlock()
	return p, nil
}

// watch returns an error when a process ends by itself.
func (t *tree) watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.gone:
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return t.failure()
	}
}

// until waits for a process to be usable.
func (t *tree) until(ctx context.Context, name string, try func() error) error {
	deadline := time.After(30 * time.Second)
	for {
		err := try()
		if err == nil || errors.Is(err, errEdgeEnded) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline:
			return protocol.Errorf(protocol.CodeUnavailable, "%s was not ready within 30 s: %v; its log is %s", name, err, filepath.Join(t.logs, name+".log"))
		case <-time.After(25 * time.Millisecond):
		}
	}
}

// end stops all processes, the newest first, and waits for each. None of them is lost
// from then on.
func (t *tree) end() error {
	t.mu.Lock()
	t.ending = true
	procs := slices.Clone(t.procs)
	t.mu.Unlock()
	slices.Reverse(procs)
	var errs []error
	for _, p := range procs {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(10 * time.Second):
			errs = append(errs, fmt.Errorf("%s did not stop within 10 s and was killed", p.name))
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
	return errors.Join(errs...)
}

func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return lastLines(b, errors.New("the log is empty"))
}

// ready asks a server's readyz.
func ready(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", bytes.TrimSpace(body))
	}
	return nil
}
