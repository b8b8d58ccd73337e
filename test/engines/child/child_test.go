//go:build linux

package child

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/test/process"
)

var shared Shared[*Child]

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// run a script as a server, whose log is in a folder.
func run(dir, script string) (*Child, error) {
	c := &Child{Process: process.New("server", filepath.Join(dir, "server.log"), func() *exec.Cmd { return exec.Command("/bin/sh", "-c", script) })}
	return c, c.Start()
}

func start(t *testing.T, script string) *Child {
	t.Helper()
	c, err := run(t.TempDir(), script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Process.Kill(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// A server is waited for until it is as far; one that ends before, or that takes too long,
// is told with its last words.
func TestAwait(t *testing.T) {
	lives := start(t, "echo still here; exec sleep 600")
	asked := 0
	if err := lives.Await(t.Context(), "an answer", func(context.Context) bool { asked++; return asked == 3 }); err != nil || asked != 3 {
		t.Errorf("after %d questions: %v", asked, err)
	}
	ends := start(t, "echo last words; exit 1")
	never := func(context.Context) bool { return false }
	if err := ends.Await(t.Context(), "an answer", never); err == nil || !strings.Contains(err.Error(), "server ended before an answer") || !strings.Contains(err.Error(), "last words") {
		t.Errorf("one that ends: %v", err)
	}
	over := errors.New("it is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	if err := lives.Await(ctx, "an answer", never); !errors.Is(err, over) {
		t.Errorf("one that takes too long: %v", err)
	}
}

// stopped is a test that a fault was refused.
type stopped struct{ testing.TB }

func (stopped) Helper()                 {}
func (s stopped) Fatalf(string, ...any) { panic(s) }

// A server of its own test is stopped and killed; one that tests share is started once,
// and no test may end it.
func TestSharedServersAreLeftAlone(t *testing.T) {
	own := start(t, "exec sleep 600")
	own.Stop(t)
	select {
	case <-own.Gone():
	default:
		t.Error("a server that was stopped runs")
	}
	starts := 0
	open := func() *Child {
		return shared.Open(t, "server", func(dir string) (*Child, error) { starts++; return run(dir, "exec sleep 600") })
	}
	common := open()
	if open() != common || starts > 1 { // none where the test runs again
		t.Errorf("it was started %d times", starts)
	}
	for name, harm := range map[string]func(testing.TB){"stop": common.Stop, "kill": common.Kill} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was not refused", name)
				}
			}()
			harm(stopped{t})
		}()
	}
	select {
	case <-common.Gone():
		t.Error("a server that is shared was ended")
	default:
	}
}
