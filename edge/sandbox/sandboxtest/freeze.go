package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
)

// quiet is how long a frozen process is watched for a sign of life. One that
// lives gives hundreds.
const quiet = 150 * time.Millisecond

// freeze is what a group promises between the loss of authority and its return,
// or its end.
func (c Config) freeze(t *testing.T) {
	b := c.New(t)
	if b.Probe(t.Context()).Freezer == "" {
		t.Run("refused", func(t *testing.T) { c.cannotFreeze(t, b) })
		return
	}
	t.Run("and thaw", func(t *testing.T) { c.freezeAndThaw(t, b) })
	t.Run("time stands still", func(t *testing.T) { c.frozenTime(t, b) })
	t.Run("nothing starts", func(t *testing.T) { c.frozenStart(t, b) })
	t.Run("and kill", func(t *testing.T) { c.frozenKill(t, b) })
	if c.Broken != nil {
		t.Run("daemons", func(t *testing.T) { c.frozenDaemons(t, b) })
	}
}

// cannotFreeze is refused, and costs the group nothing.
func (c Config) cannotFreeze(t *testing.T, b sandbox.Backend) {
	g := group(t, b, roomy)
	if err := g.Freeze(t.Context()); protocol.CodeOf(err) != protocol.CodeIncompatible {
		t.Errorf("freezing without a freezer: %v", errors.Join(err, g.Thaw(t.Context())))
	}
	if r := run(t.Context(), g, c.code("exit", "7")); r.err != nil || r.exit != (sandbox.Exit{Code: 7}) {
		t.Errorf("a process after that: %+v", r)
	}
}

// pulse counts what a process says.
type pulse struct{ said atomic.Int64 }

func (p *pulse) Write(b []byte) (int, error) {
	p.said.Add(int64(len(b)))
	return len(b), nil
}

// still reports that nothing comes any more once what was on its way is there.
func (p *pulse) still() bool {
	for range 100 {
		before := p.said.Load()
		time.Sleep(quiet)
		if p.said.Load() == before {
			return true
		}
	}
	return false
}

// beating is a process with a pulse.
func (c Config) beating(t *testing.T, g sandbox.Group) (*pulse, *started) {
	t.Helper()
	pulse := &pulse{}
	p := c.code("beat")
	p.Stdout = pulse
	s := &started{done: make(chan result, 1)}
	go func() { s.done <- run(t.Context(), g, p) }()
	pulse.goesOn(t)
	return pulse, s
}

func (p *pulse) goesOn(t *testing.T) {
	t.Helper()
	before := p.said.Load()
	eventually(t, "a sign of life", func() bool { return p.said.Load() > before })
}

func (c Config) freezeAndThaw(t *testing.T, b sandbox.Backend) {
	l := roomy
	l.OutputBytes = 1 << 30
	g := group(t, b, l)
	first, one := c.beating(t, g)
	second, two := c.beating(t, g)
	for range 3 {
		for range 2 { // a repeated step is harmless
			check(t, g.Freeze(t.Context()))
		}
		if !first.still() || !second.still() {
			t.Fatal("a frozen process goes on")
		}
		for range 2 {
			check(t, g.Thaw(t.Context()))
		}
		first.goesOn(t)
		second.goesOn(t)
	}
	check(t, g.Kill(t.Context()))
	for _, s := range []*started{one, two} {
		if r := s.wait(t); r.err != nil || !r.exit.Killed {
			t.Errorf("a killed process that was frozen before: %+v", r)
		}
	}
	for name, step := range map[string]func(context.Context) error{"freeze": g.Freeze, "thaw": g.Thaw} {
		if err := step(t.Context()); protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
			t.Errorf("%s after the kill: %v", name, err)
		}
	}
}

// frozenTime: a time limit counts what the process could have used.
func (c Config) frozenTime(t *testing.T, b sandbox.Backend) {
	g := group(t, b, roomy)
	limit, s := 2*quiet, (*started)(nil)
	for ; s == nil; limit *= 4 { // a slow machine takes longer to start one
		s = c.upWithin(t, g, limit)
	}
	check(t, g.Freeze(t.Context()))
	select {
	case r := <-s.done:
		t.Fatalf("its time limit ended it although it was frozen: %+v", r)
	case <-time.After(limit):
	}
	check(t, g.Thaw(t.Context()))
	if r := s.wait(t); r.err != nil || !r.exit.Timeout || r.exit.Killed {
		t.Errorf("its time limit after the thaw: %+v", r)
	}
}

// upWithin is a sleeper with a time limit, or nil if that ended it before it ran.
func (c Config) upWithin(t *testing.T, g sandbox.Group, limit time.Duration) *started {
	p := c.code("sleep")
	p.Timeout = limit
	s := &started{up: make(chan struct{}), done: make(chan result, 1)}
	p.Stdout = &signaller{up: s.up}
	go func() { s.done <- run(t.Context(), g, p) }()
	select {
	case <-s.up:
		return s
	case r := <-s.done:
		if !r.exit.Timeout {
			t.Fatalf("a sleeper with a time limit: %+v", r)
		}
		return nil
	}
}

// frozenStart: what comes while frozen starts at the thaw, or not at all.
func (c Config) frozenStart(t *testing.T, b sandbox.Backend) {
	g := group(t, b, roomy)
	check(t, g.Freeze(t.Context()))
	done := make(chan result, 1)
	go func() { done <- run(t.Context(), g, c.code("exit", "7")) }()
	gaveUp := errors.New("the call is not wanted any more")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(quiet, func() { cancel(gaveUp) })
	if r := run(ctx, g, c.code("exit", "7")); !errors.Is(r.err, gaveUp) || !r.exit.Killed {
		t.Errorf("one that is cancelled while it waits: %+v", r)
	}
	select {
	case r := <-done:
		t.Fatalf("a process started in a frozen group: %+v", r)
	default:
	}
	check(t, g.Thaw(t.Context()))
	if r := (&started{done: done}).wait(t); r.err != nil || r.exit != (sandbox.Exit{Code: 7}) {
		t.Errorf("one that waited: %+v", r)
	}
}

// frozenKill ends what is frozen, and who waits to start.
func (c Config) frozenKill(t *testing.T, b sandbox.Backend) {
	for name, end := range map[string]func(sandbox.Group) error{
		"kill":  func(g sandbox.Group) error { return g.Kill(t.Context()) },
		"close": func(g sandbox.Group) error { return g.Close(t.Context()) },
	} {
		g := group(t, b, roomy)
		s := start(t, t.Context(), g, c.code("sleep"))
		check(t, g.Freeze(t.Context()))
		waiting := make(chan result, 1)
		go func() { waiting <- run(t.Context(), g, c.code("exit", "0")) }()
		if err := end(g); err != nil {
			t.Errorf("%s while frozen: %v", name, err)
		}
		if r := s.wait(t); r.err != nil || !r.exit.Killed || r.exit.Timeout {
			t.Errorf("the frozen process after %s: %+v", name, r)
		}
		if r := (&started{done: waiting}).wait(t); protocol.CodeOf(r.err) != protocol.CodeFailedPrecondition {
			t.Errorf("who waited to start after %s: %+v", name, r)
		}
	}
}

// frozenDaemons: session leaders, double forks and orphans stop too, and die
// frozen.
func (c Config) frozenDaemons(t *testing.T, b sandbox.Backend) {
	g, tok := group(t, b, roomy), token()
	dir := t.TempDir()
	mark := filepath.Join(dir, "beat")
	loop := "while :; do echo . >> /workspace/beat; sleep 0.01; done; # " + tok
	p := c.shell(fmt.Sprintf("(setsid sh -c '%s' &) ; while ! test -s /workspace/beat; do :; done; echo up; sleep 600", loop))
	p.Workspace = dir
	s := start(t, t.Context(), g, p)
	size := func() int64 {
		st, err := os.Stat(mark)
		check(t, err)
		return st.Size()
	}
	check(t, g.Freeze(t.Context()))
	before := size()
	time.Sleep(2 * quiet)
	if now := size(); now != before {
		t.Errorf("a daemon of a frozen group wrote %d bytes", now-before)
	}
	check(t, g.Thaw(t.Context()))
	eventually(t, "the daemon to go on", func() bool { return size() > before })
	check(t, g.Freeze(t.Context()))
	check(t, g.Kill(t.Context()))
	if r := s.wait(t); !r.exit.Killed {
		t.Errorf("the command: %+v", r)
	}
	if left := withToken(t, tok); len(left) > 0 {
		t.Errorf("processes %v outlived the kill of a frozen group", left)
	}
}
