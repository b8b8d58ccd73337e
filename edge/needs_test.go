package edge

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/sandbox"
)

// What turns in sandboxes need is named with what mends it, until it is there.
func TestNeeds(t *testing.T) {
	n := Needs{Worker: filepath.Join(t.TempDir(), "bivouac-worker"), LookFunc: func(name string) (string, error) { return "/usr/bin/" + name, nil }}
	for _, c := range []struct {
		change func() error
		want   string
	}{
		{func() error { return nil }, "copy it there, beside bivouac-edge"},
		{func() error { return os.WriteFile(n.Worker, nil, 0o600) }, "`chmod +x " + n.Worker + "`"},
		{func() error { return os.Chmod(n.Worker, 0o700) }, ""},
		{func() error { n.LookFunc = func(string) (string, error) { return "", errors.New("no") }; return nil }, "`sudo apt-get install git`"},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		if got := n.Missing(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// A machine that lacks what turns need offers no slot and says why, to its owner and to
// the server; it declines a turn that was offered before. Device actions go on, and what
// was put in place counts without a restart.
func TestNoTurnsWithoutAWorker(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		var lacks atomic.Pointer[string]
		say := func(why string) { lacks.Store(&why) }
		say("bivouac-worker is not there")
		m.cfg.MissingFunc = func() string { return *lacks.Load() }
		m.run()
		m.connected()
		told := func() *runnerv1.Facts { return get(f, func() *runnerv1.Facts { return proto.CloneOf(f.facts) }) }
		s := m.daemon.Status()
		if s.Slots != 0 || s.Boundary != "" || s.SandboxProblem != "bivouac-worker is not there" || !strings.Contains(s.LastError, "bivouac-worker") {
			t.Errorf("status: %d slots, boundary %q, problem %q, error %q", s.Slots, s.Boundary, s.SandboxProblem, s.LastError)
		}
		if got := told(); got.GetSlots() != 0 || len(got.GetAdapters()) != 0 || got.GetSandboxProblem() != s.SandboxProblem {
			t.Errorf("the server was told %v", got)
		}
		turn, action := newAttempt(), newAttempt()
		f.offer(turn, protocol.KindTurn, &runnerv1.Work{})
		f.offer(action, protocol.KindAction, deviceWork("files.list", map[string]any{"path": "notes"}))
		m.await("the decline", rulesEvery, func() bool {
			return get(f, func() bool { return strings.Contains(f.declined[turn.String()], "bivouac-worker") })
		})
		m.await("the result", rulesEvery, func() bool { return f.result(action).GetStatus() == protocol.ResultSucceeded })
		say("git is not found")
		m.await("the next thing that is missing", 2*rulesEvery, func() bool { return told().GetSandboxProblem() == "git is not found" })
		say("")
		m.await("its slot", 2*rulesEvery, func() bool { return told().GetSlots() == 1 && m.daemon.Status().LastError == "" })
	})
}

// noSandbox is of a machine on which its program is missing.
type noSandbox struct{ provedSandbox }

func (noSandbox) Probe(context.Context) sandbox.Report {
	return sandbox.Report{Problem: "bubblewrap is not installed: `sudo apt-get install bubblewrap`"}
}

// A machine without a sandbox says so where its owner looks, and takes device actions.
func TestNoTurnsWithoutASandbox(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		var log strings.Builder
		m.cfg.Sandbox, m.cfg.Log = noSandbox{}, slog.New(slog.NewTextHandler(&log, nil))
		m.run()
		m.connected()
		s := m.daemon.Status()
		if s.Slots != 0 || !strings.Contains(s.SandboxProblem, "apt-get") || !strings.Contains(s.LastError, "apt-get") {
			t.Errorf("status: %d slots, problem %q, error %q", s.Slots, s.SandboxProblem, s.LastError)
		}
		action := newAttempt()
		f.offer(action, protocol.KindAction, deviceWork("files.list", map[string]any{"path": "notes"}))
		m.await("the result", rulesEvery, func() bool { return f.result(action).GetStatus() == protocol.ResultSucceeded })
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), "level=WARN msg=\"no turn in a sandbox is taken\""); got != 1 || !strings.Contains(log.String(), "apt-get install bubblewrap") {
			t.Errorf("%d warnings in %s", got, log.String())
		}
	})
}
