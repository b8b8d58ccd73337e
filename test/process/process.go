//go:build linux

// Package process runs programs for tests and for the demo. It owns a program from
// its start to its end and nothing that the program starts in turn.
//
// It guarantees that a program ends at the latest with the process that started it,
// and that programs are only ever ended by their number.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one program. It can be ended, killed and started again with the same
// command line. A nil Process is one that was never started.
type Process struct {
	name  string
	log   string
	build func() *exec.Cmd

	mu   sync.Mutex // guards below
	cmd  *exec.Cmd
	gone chan struct{}
}

// New makes a process that is not started yet. build makes its command for each
// start; its output goes to the file log.
func New(name, log string, build func() *exec.Cmd) *Process {
	return &Process{name: name, log: log, build: build}
}

// Name of the program, for messages.
func (p *Process) Name() string { return p.name }

// Start starts it, with more environment for this time only. Its output is
// appended to its log.
func (p *Process) Start(env ...string) error {
	if err := os.MkdirAll(filepath.Dir(p.log), 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := p.build()
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := startHeld(cmd); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is for whoever waits to judge
		close(gone)
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.gone = cmd, gone
	return nil
}

// PID of the newest start.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Gone is closed when the newest start has ended.
func (p *Process) Gone() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// Kill ends it as a power failure would, and waits.
func (p *Process) Kill() error {
	if p == nil || p.Gone() == nil {
		return nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.Gone()
	return nil
}

func (p *Process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// endIn is how long a process may take to end when it is asked to.
const endIn = 15 * time.Second

// End asks it to end, as a person would, and waits.
func (p *Process) End() error {
	if p == nil || p.Gone() == nil {
		return nil
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.Gone():
		return nil
	case <-time.After(endIn):
		return errors.Join(fmt.Errorf("%s did not end within %s and was killed\n%s", p.name, endIn, p.Tail()), p.Kill())
	}
}

// Tail is the end of its log, without the calls that went well.
func (p *Process) Tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	var said []string
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "msg=call") || !strings.Contains(line, "code=ok") {
			said = append(said, line)
		}
	}
	return p.name + " says:\n" + strings.Join(said[max(0, len(said)-25):], "")
}

// Output runs a command to its end and returns what it printed. Its own words are
// part of the error.
func Output(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := startHeld(cmd); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out.String(), errOut.String())
	}
	return out.String(), nil
}

// held starts commands on one thread that lives as long as this process: the
// kernel ends them when that thread is gone, so none outlives a test that panics.
var held = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func startHeld(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	done := make(chan error)
	held() <- func() { done <- cmd.Start() }
	return <-done
}
