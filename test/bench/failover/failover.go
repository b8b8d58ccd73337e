//go:build linux

// Package failover measures what people notice of the end of one of two servers: the
// product as processes on one PostgreSQL, people who admit turns without a pause, and
// kill -9 of the server that serves them, again and again, each of the two in turn. It
// owns those processes and ends them by their number.
//
// It guarantees that what it counts is seen from outside: acknowledgements as clients
// got them, and turns as the store has them once all is over. It judges no time.
package failover

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/op"
	"bivouac/test/e2e/stack"
)

// Config of a measurement.
type Config struct {
	// Bin holds the product's binaries, Dir everything else.
	Bin, Dir string
	// Database is the DSN of an empty PostgreSQL database.
	Database string
	// People admit at once, and Kills happen.
	People, Kills int
}

// Outcome of a measurement.
type Outcome struct {
	// Gaps is, for each kill and each person, how long after the kill the other
	// server first acknowledged a message of theirs.
	Gaps []time.Duration
	// Acknowledged counts messages. Lost ones of them are not in the store; those
	// admitted Twice are two turns there, or were acknowledged as two.
	Acknowledged, Lost, Twice int
}

const agent = `
agent "keeper" {
  profile       = "personal"
  placement     = "service"
  data_boundary = "internal"
  instructions  = "You keep notes."
  model { route = "scripted" }
  limits { max_queued = 100 }
}
`

const script = `
rule "noted" { text = "It is noted." }
`

// run is a measurement under way.
type run struct {
	stack  *stack.Stack
	people []*person
}

// Measure starts everything, kills, and reads back what was stored.
func Measure(ctx context.Context, cfg Config) (out Outcome, err error) {
	s, err := stack.Start(ctx, stack.Config{Bin: cfg.Bin, Dir: cfg.Dir, Script: script, Agents: []string{agent}, Database: cfg.Database})
	if err != nil {
		return out, err
	}
	r := &run{stack: s}
	defer func() {
		for _, p := range r.people {
			p.close()
		}
		err = errors.Join(err, s.Kill())
	}()
	for n := range cfg.People {
		p, err := r.newPerson(ctx, n)
		if p != nil {
			r.people = append(r.people, p)
		}
		if err != nil {
			return out, err
		}
	}
	if out.Gaps, err = r.kills(ctx, cfg.Kills); err != nil {
		return out, err
	}
	for _, p := range r.people {
		stored, err := p.stored(ctx)
		if err != nil {
			return out, err
		}
		out.add(p.answers, stored)
	}
	return out, nil
}

// kills ends one server after the other under load. Everybody is with the one that
// ends, since they went there when the other one did.
func (r *run) kills(ctx context.Context, n int) (gaps []time.Duration, err error) {
	over := make(chan struct{})
	more := func() bool {
		select {
		case <-over:
			return false
		default:
			return true
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return r.everybody(ctx, func(ctx context.Context, p *person) error { return p.admit(ctx, more) })
	})
	g.Go(func() error {
		defer close(over)
		for i := range n {
			some, err := r.kill(ctx, i%2)
			if err != nil {
				return err
			}
			gaps = append(gaps, some...)
		}
		return nil
	})
	return gaps, g.Wait()
}

// kill ends a server while everybody works, waits until the other one serves everybody,
// and brings it back.
func (r *run) kill(ctx context.Context, which int) ([]time.Duration, error) {
	at := time.Now()
	if _, err := r.served(ctx, at, which); err != nil {
		return nil, err
	}
	op.Sleep(ctx, 300*time.Millisecond+rand.N(300*time.Millisecond)) // anywhere in what goes on
	server := []*stack.Process{r.stack.Server, r.stack.Second}[which]
	at = time.Now()
	if err := server.Kill(); err != nil {
		return nil, err
	}
	gaps, err := r.served(ctx, at, 1-which)
	if err != nil {
		return nil, err
	}
	if err := server.Start(); err != nil {
		return nil, err
	}
	if which == 1 {
		return gaps, r.stack.SecondReady(ctx)
	}
	return gaps, r.stack.Ready(ctx)
}

// served waits until a server has acknowledged a message of everybody, and says how
// long after an instant it did.
func (r *run) served(ctx context.Context, at time.Time, server int) ([]time.Duration, error) {
	var out []time.Duration
	for _, p := range r.people {
		for {
			first, ok := p.after(at, server)
			if ok {
				out = append(out, first.Sub(at))
				break
			}
			if !op.Sleep(ctx, 2*time.Millisecond) {
				return nil, context.Cause(ctx)
			}
		}
	}
	return out, nil
}

// add counts one person's messages. A message that nobody acknowledged may be stored
// once or not at all.
func (o *Outcome) add(answers []answer, stored map[string][]string) {
	first := map[string]string{}
	lost, twice := map[string]bool{}, map[string]bool{}
	for _, a := range answers {
		if _, known := first[a.message]; !known {
			first[a.message] = a.turn
		}
		if first[a.message] != a.turn {
			twice[a.message] = true
		}
		if !slices.Contains(stored[a.message], a.turn) {
			lost[a.message] = true
		}
	}
	for message, turns := range stored {
		if len(turns) > 1 {
			twice[message] = true
		}
	}
	o.Acknowledged += len(first)
	o.Lost += len(lost)
	o.Twice += len(twice)
}
