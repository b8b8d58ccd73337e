//go:build linux

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/test/e2e/stack"
)

var (
	kills     = flag.Int("kills", 0, "processes that TestStorm kills on each engine; default 1000, and 60 with -short")
	stormSeed = flag.Uint64("storm-seed", 0, "seed of TestStorm's choices; default: a new one, which is printed")
)

// longStorm is the number of kills from which on growth is told from noise, and the
// machine's speed does not decide what could happen. A shorter one judges neither.
const longStorm = 200

// killEvery is the pace: at most one kill a second.
const killEvery = time.Second

// TestStorm kills processes at random with -9, at most one a second, while people
// work: on SQLite, and on PostgreSQL with two servers. Whatever is hit: ids are
// unique, accepted ⊆ effects ⊆ accepted ∪ unknown, and nothing else happens; every
// record proves; nothing is left behind; memory and descriptors stay flat, which is
// judged in the whole form alone.
// INV-3, INV-4, INV-5, INV-8, INV-14, INV-15, INV-18.
func TestStorm(t *testing.T) {
	n := *kills
	if n == 0 {
		if n = 1000; testing.Short() {
			n = 60
		}
	}
	seed := *stormSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	for _, engine := range []string{"sqlite", "postgres"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			fmt.Printf("storm on %s: %d kills, -storm-seed %d\n", engine, n, seed)
			s := newStorm(t, engine == "postgres")
			whole := s.rage(n, seed)
			record := s.record()
			s.print(engine, record, whole)
			for _, bad := range record.violations() {
				t.Error(bad)
			}
			s.judgeItself(record, n)
			for _, c := range s.gauge.compared(whole) {
				t.Log(c)
				if n >= longStorm && c.grew() {
					t.Error("not flat: ", c)
				}
			}
			if t.Failed() {
				t.Log(s.tails())
			}
		})
	}
}

// rage kills n processes under load and returns how long that took. When it
// returns the load has ended, and everything runs.
func (s *storm) rage(n int, seed uint64) (whole time.Duration) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	s.gauge = newStormGauge()
	var aside sync.WaitGroup
	beside := func(every time.Duration, do func()) {
		aside.Go(func() {
			for ctx.Err() == nil {
				do()
				pause(ctx, every)
			}
		})
	}
	for i, p := range s.people {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		beside(60*time.Millisecond, func() { p.approve(ctx, rnd) })
	}
	beside(300*time.Millisecond, func() {
		if running, err := s.Running(); err == nil {
			s.gauge.look(running)
		}
	})
	wait := s.load(ctx, seed)
	rnd := rand.New(rand.NewPCG(seed, 1<<32))
	for range n {
		next := time.Now().Add(killEvery)
		if err := s.killOne(rnd); err != nil {
			s.t.Error(err)
		}
		pause(ctx, time.Until(next))
	}
	whole = time.Since(s.gauge.begun)
	close(s.over)
	over := time.Now()
	if err := s.within(stormPatience, wait); err != nil {
		s.t.Errorf("the load: %v", err)
	}
	s.t.Logf("the load ended %s after the last kill", time.Since(over).Round(100*time.Millisecond))
	s.restartFallen()
	s.settle() // approvals go on being decided
	cancel()
	aside.Wait()
	return whole
}

// stormPatience is how long the load may take to end, and what it began to settle;
// far more than it needs, for timing is never judged.
const stormPatience = 3 * time.Minute

// within waits for a function, but not for ever: what never ends is found here.
func (s *storm) within(patience time.Duration, wait func() error) error {
	done := make(chan error, 1)
	go func() { done <- wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return fmt.Errorf("it has not ended within %s\n%s", patience, s.tails())
	}
}

// parts are the processes that a service manager would restart.
func (s *storm) parts() map[string]*stack.Process {
	parts := map[string]*stack.Process{"server": s.Server, "broker": s.Broker}
	if s.Second != nil {
		parts["second"] = s.Second
	}
	for _, e := range s.Edges {
		parts["edge "+e.Name] = e.Daemon
	}
	return parts
}

// restartFallen starts what ended though nobody killed it, and remembers that.
func (s *storm) restartFallen() {
	for name, p := range s.parts() {
		select {
		case <-p.Gone():
			s.mu.Lock()
			s.fell = append(s.fell, name+"\n"+p.Tail())
			s.mu.Unlock()
			if err := p.Start(); err != nil {
				s.t.Error(err)
			}
		default:
		}
	}
}

// killOne kills a process with -9, any role as likely as another, and has what
// nothing in the product restarts start again at once.
func (s *storm) killOne(rnd *rand.Rand) error {
	s.restartFallen()
	parts := s.parts()
	names := append(slices.Sorted(maps.Keys(parts)), "supervise", "worker")
	for {
		name := names[rnd.IntN(len(names))]
		role, _, _ := strings.Cut(name, " ")
		if p := parts[name]; p != nil {
			s.killed[role]++
			return errors.Join(p.Kill(), p.Start())
		}
		running, err := s.Running()
		if err != nil {
			return err
		}
		running = slices.DeleteFunc(running, func(r stack.Running) bool { return r.Role != role })
		if len(running) == 0 {
			continue // nobody codes right now
		}
		switch err := running[rnd.IntN(len(running))].Kill(); {
		case err == nil:
			s.killed[role]++
			return nil
		case !errors.Is(err, os.ErrProcessDone):
			return err
		}
	}
}

// tails are the last words of all parts.
func (s *storm) tails() string {
	var said []string
	for _, p := range s.parts() {
		said = append(said, p.Tail())
	}
	return strings.Join(said, "\n")
}

func (s *storm) print(engine string, r *stormRecord, whole time.Duration) {
	states, actions := map[string]int{}, map[string]int{}
	events, shown, again := 0, 0, 0
	for _, t := range r.turns {
		states[strings.TrimSuffix(t.state+"{"+t.reason+"}", "{}")]++
		if t.state == "FAILED" {
			s.t.Logf("turn %s failed: %s: %s", t.id, t.reason, t.message)
		}
		for _, a := range t.actions {
			actions[strings.TrimSuffix(a.state+"{"+a.reason+"}", "{}")]++
		}
	}
	for _, one := range r.sessions {
		events, shown = events+len(one.events), shown+len(one.shown)
	}
	for _, one := range r.sent {
		again += len(one.turns) - 1
	}
	fmt.Printf("storm on %s: killed in %s: %v\nturns of %d messages, %d sent twice: %v\nactions: %v\neffects: %d; events: %d in %d sessions, %d shown by streams\n",
		engine, whole.Round(time.Second), s.killed, len(r.sent), again, states, actions, len(r.effects), events, len(r.sessions), shown)
}

// judgeItself fails a storm in which too little happened to say anything. How much
// happens in a short one is the machine's speed, which is not judged: what such a one
// did not reach is said loudly.
func (s *storm) judgeItself(r *stormRecord, n int) {
	completed := 0
	for _, t := range r.turns {
		if t.state == "COMPLETED" {
			completed++
		}
	}
	missed, fewest := s.t.Errorf, n/10
	if n < longStorm {
		missed, fewest = func(format string, args ...any) { s.t.Logf("SKIPPED LOUDLY: "+format, args...) }, 1
	}
	if completed < fewest || len(r.effects) < fewest {
		s.t.Errorf("%d turns were completed, and %d effects happened, over %d kills: nobody could work", completed, len(r.effects), n)
	}
	for _, role := range []string{"server", "broker", "edge", "supervise", "worker"} {
		if s.killed[role] == 0 && (s.people[0].workspace != "" || role != "supervise" && role != "worker") {
			missed("no %s was killed", role)
		}
	}
}
