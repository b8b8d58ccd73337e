package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"bivouac/edge/allocation"
)

// givesBack is a program that gives its signals back at a word, and goes on at another.
func givesBack() {
	s := untilSignal(context.Background())
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("has them")
	in.Scan()
	fmt.Println("none came:", s.giveBack())
	if in.Scan() {
		fmt.Println("it goes on")
	}
}

// A signal that comes before a program gives them back is known to it, one that comes
// later ends it, and none is lost between the two.
func TestSignalsAreGivenBack(t *testing.T) {
	for name, c := range map[string]struct {
		before, after bool
		ends          func(out string, s syscall.WaitStatus) bool
	}{
		"before": {before: true, ends: func(out string, s syscall.WaitStatus) bool {
			// It may reach the process when it has given them back: the thread that it is for
			// may be the last one to run.
			return strings.Contains(out, "none came: false") || s.Signaled() && s.Signal() == syscall.SIGTERM
		}},
		"after": {after: true, ends: func(out string, s syscall.WaitStatus) bool {
			return strings.Contains(out, "none came: true") && s.Signaled() && s.Signal() == syscall.SIGTERM
		}},
		"twin: never": {ends: func(out string, s syscall.WaitStatus) bool {
			return strings.HasSuffix(out, "none came: true\nit goes on\n") && s.ExitStatus() == 0
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "gives-back")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			out := bufio.NewReader(stdout)
			line := func() string {
				s, _ := out.ReadString('\n') // nothing where it has ended
				return s
			}
			said := line()
			if c.before {
				err = cmd.Process.Signal(syscall.SIGTERM)
			}
			io.WriteString(in, "give them back\n")
			said += line()
			switch {
			case c.after:
				err = cmd.Process.Signal(syscall.SIGTERM)
			case c.before && strings.Contains(said, "none came: true"): // it is on its way still
			default:
				io.WriteString(in, "go on\n")
			}
			if err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(out)
			_ = cmd.Wait() // its status says how
			if s := cmd.ProcessState.Sys().(syscall.WaitStatus); !c.ends(said+string(rest), s) {
				t.Errorf("it ended with %v: %s%s", s, said, rest)
			}
		})
	}
}

// A task that is stopped when it has just taken its attempt does not become the supervisor:
// what it took is nobody's any more, and the daemon finds that.
func TestTaskStoppedBeforeItBegan(t *testing.T) {
	n := newNode(t)
	n.expect()
	s := untilSignal(t.Context())
	var said strings.Builder
	task := allocation.Task{Job: n.job, State: n.dir.Path(), InJob: n.job, Alloc: firstAlloc, Wait: allocation.DefaultWait,
		Log: slog.New(slog.NewTextHandler(&said, nil))}
	// The signal comes, and is not seen by whoever waits for it: as right after Take.
	close(s.back)
	s.waits.Wait()
	s.back = make(chan struct{})
	s.came <- syscall.SIGTERM
	if err := superviseTask(s.ctx, task, "no worker"); err != nil || !strings.Contains(said.String(), "stopped before it had begun") {
		t.Errorf("%v, said %s", err, said.String())
	}
	if _, taken, err := n.a.Mark(); err != nil || !taken {
		t.Errorf("it was not taken: %v", err)
	}
}
