//go:build linux

package stack

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one part of the product. It can be ended, killed and started again
// with the same command line. A nil Process is one that was never started.
type Process struct {
	name  string
	log   string
	build func() *exec.Cmd

	mu   sync.Mutex // guards below
	cmd  *exec.Cmd
	gone chan struct{}
}

// Start starts it, with more environment for this time only. Its output is
// appended to its log.
func (p *Process) Start(env ...string) error {
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

// sweep kills what is left of a stack: processes whose command line names its
// directory, which are supervisors, each by its number.
func sweep(dir string) error {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range lines {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		line, err := os.ReadFile(name)
		if err != nil || pid == os.Getpid() || !bytes.Contains(line, []byte(dir+"/")) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("process %d is left: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

var ports struct {
	sync.Mutex
	taken map[int]bool
}

// freePort finds a port that is free for TCP and UDP, below those that the kernel
// gives to clients, and gives none out twice.
func freePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	if ports.taken == nil {
		ports.taken = map[int]bool{}
	}
	for range 200 {
		port := 20000 + rand.IntN(12000)
		if ports.taken[port] || !free(net.JoinHostPort(loopback, strconv.Itoa(port))) {
			continue
		}
		ports.taken[port] = true
		return port, nil
	}
	return 0, errors.New("no free port was found")
}

func free(address string) bool {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	defer l.Close()
	p, err := net.ListenPacket("udp", address)
	if err != nil {
		return false
	}
	return p.Close() == nil
}
