package sandboxtest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
)

// limits are exceeded, each beside a limit under which the same passes.
func (c Config) limits(t *testing.T) {
	b := c.New(t)
	whole := b.Probe(t.Context()).Limits == protocol.LimitsCgroup
	t.Run("memory", func(t *testing.T) {
		small := roomy
		small.MemoryBytes = 256 << 20
		r := run(t.Context(), group(t, b, small), c.code("hog", "400"))
		if r.err != nil || r.exit.Code == 0 || strings.Contains(r.out, "used all") || r.exit.OutOfMemory != whole {
			t.Errorf("400 MB under 256 MB: %+v", r)
		}
		if r := run(t.Context(), group(t, b, roomy), c.code("hog", "400")); r.err != nil || r.exit != (sandbox.Exit{}) {
			t.Errorf("400 MB under 1 GB: %+v", r)
		}
	})
	t.Run("worker survives greedy code", func(t *testing.T) {
		if !whole {
			t.Skip("limits over an attempt need control groups")
		}
		c.greedyCode(t, b)
	})
	t.Run("processes", func(t *testing.T) { c.processLimit(t, b, whole) })
	t.Run("fork bomb", func(t *testing.T) {
		l := roomy
		l.PIDs, l.Timeout = 40, 500*time.Millisecond
		token := fmt.Sprintf("8640%d", os.Getpid())
		// Every process doubles itself and waits, for ever.
		bomb := "f() { f & f & sleep " + token + "; }; f; wait; sleep " + token
		r := run(t.Context(), group(t, b, l), c.shell(bomb))
		if r.err != nil || !r.exit.Timeout && r.exit.Code == 0 {
			t.Errorf("a fork bomb: %+v", r)
		}
		if left := withToken(t, token); len(left) > 0 {
			t.Errorf("a fork bomb left processes %v", left)
		}
	})
	t.Run("disk", func(t *testing.T) {
		small := roomy
		small.DiskBytes = 4 << 20
		r := run(t.Context(), group(t, b, small), c.inWorkspace(t, "fill", "8", "/workspace"))
		if r.err != nil || !r.exit.DiskLimit || r.exit.Killed || r.exit.Timeout {
			t.Errorf("8 MB in a workspace of 4 MB: %+v", r)
		}
		r = run(t.Context(), group(t, b, roomy), c.inWorkspace(t, "fill", "8", "/workspace", "exit"))
		if r.err != nil || r.exit != (sandbox.Exit{}) || !strings.Contains(r.out, "filled") {
			t.Errorf("8 MB in a workspace of 256 MB: %+v", r)
		}
	})
}

// greedyCode lets B take all memory while a worker lives in the same group: the
// kernel has to choose B.
func (c Config) greedyCode(t *testing.T, b sandbox.Backend) {
	l := roomy
	l.MemoryBytes = 128 << 20
	g := group(t, b, l)
	ours, theirs := socketpair(t)
	p := c.code("hold")
	p.Role, p.Socket = sandbox.RoleWorker, theirs
	worker := start(t, t.Context(), g, p)
	if r := run(t.Context(), g, c.code("hog", "400")); !r.exit.OutOfMemory {
		t.Errorf("400 MB under 128 MB: %+v", r)
	}
	ours.Close()
	theirs.Close()
	if r := worker.wait(t); r.err != nil || r.exit != (sandbox.Exit{}) {
		t.Errorf("the worker beside it: %+v", r)
	}
}

// processLimit counts how many processes can be made.
func (c Config) processLimit(t *testing.T, b sandbox.Backend, whole bool) {
	count := func(pids int32) (int, result) {
		l := roomy
		l.PIDs = pids
		r := run(t.Context(), group(t, b, l), c.shell("i=0; while [ $i -lt 60 ]; do sleep 600 & i=$((i+1)); echo made; done; exit 0"))
		return strings.Count(r.out, "made"), r
	}
	made, r := count(20)
	// The group also counts a handful that are the backend's own.
	if r.err != nil || made == 0 || made > 36 || r.exit.Code == 0 || r.exit.TooManyPIDs != whole {
		t.Errorf("60 processes under 20: made %d, %+v", made, r)
	}
	made, r = count(100)
	if r.err != nil || made != 60 || r.exit != (sandbox.Exit{}) {
		t.Errorf("60 processes under 100: made %d, %+v", made, r)
	}
}

// inWorkspace is code with an empty workspace.
func (c Config) inWorkspace(t *testing.T, args ...string) sandbox.Process {
	p := c.code(args...)
	p.Workspace = t.TempDir()
	return p
}
