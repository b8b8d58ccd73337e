package intentions

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/consul"
	"bivouac/consul/client"
	"bivouac/consul/refused"
	"bivouac/consul/settings"
	"bivouac/edge/lease"
	"bivouac/edge/protocol"
)

const (
	// MaxDestinations that are watched: each holds a request open, and an agent's own
	// limit for one address is 200 (limits.http_max_conns_per_client).
	MaxDestinations = 150
	// DefaultFresh and DefaultGrace of answers.
	DefaultFresh = settings.DefaultFresh
	DefaultGrace = 15 * time.Second
)

// Source answers which intentions are about a destination; *client.Client does.
type Source interface {
	Match(ctx context.Context, destination string, index uint64, wait time.Duration) (client.Answer, error)
}

// Params of a Server.
type Params struct {
	Source Source
	// Destinations that are watched from the start. Others are watched once they are
	// asked for.
	Destinations []string
	// Fresh bounds the age of an answer under which something new begins, Grace of one
	// under which something open goes on. Zero: the defaults.
	Fresh, Grace time.Duration
	// Elapsed counts suspend. Default lease.Boottime.
	Elapsed lease.Elapsed
	Log     *slog.Logger
	// Config it was made of, for a doctor; nil: none.
	Config *settings.Config
}

// Server is the Paths port on Consul. It is safe for concurrent use.
type Server struct {
	p    Params
	wait time.Duration

	mu      sync.RWMutex // guards below
	watches map[string]*watch
	failing map[string]bool // destinations whose newest question failed
	bell    chan struct{}   // a watch is new
}

// Open makes the port of a configuration. Grace is how long something open may go on
// while Consul cannot be asked.
func Open(c settings.Config, destinations []string, grace time.Duration, log *slog.Logger) (*Server, error) {
	asked, err := c.Client()
	if err != nil {
		return nil, err
	}
	return New(Params{Source: asked, Destinations: destinations, Fresh: c.Fresh(), Grace: grace, Log: log, Config: &c})
}

// New asks nothing: Run and Refresh do.
func New(p Params) (*Server, error) {
	p.Fresh, p.Grace = cmp.Or(p.Fresh, DefaultFresh), cmp.Or(p.Grace, DefaultGrace)
	if p.Elapsed == nil {
		p.Elapsed = lease.Boottime
	}
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if len(p.Destinations) > MaxDestinations {
		return nil, tooMany(len(p.Destinations))
	}
	s := &Server{p: p, wait: p.Fresh / 3, watches: map[string]*watch{}, failing: map[string]bool{}, bell: make(chan struct{}, 1)}
	for _, name := range p.Destinations {
		s.watches[name] = &watch{name: name}
	}
	return s, nil
}

func tooMany(n int) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "%d destinations and model routes are more than the %d that are watched in Consul: part them between two brokers, or keep the paths in files", n, MaxDestinations)
}

// Decide evaluates one pair and one request by the newest answer; see consul.Set.Decide.
// It never waits.
func (s *Server) Decide(source, destination string, r *consul.Request) consul.Decision {
	if destination == consul.Wildcard || consul.CheckName(destination) != nil {
		return consul.Decision{Reason: fmt.Sprintf("%q to %q names no exact pair", source, destination)}
	}
	w := s.watched(destination)
	if w == nil {
		return consul.Decision{Unknown: true, Reason: tooMany(MaxDestinations + 1).Error()}
	}
	known := w.known.Load()
	if known == nil || known.set == nil {
		return consul.Decision{Unknown: true, Reason: known.lacks("Consul has not said yet who may reach " + destination)}
	}
	age := s.p.Elapsed() - known.asked
	if age > s.p.Grace {
		return consul.Decision{Unknown: true, Reason: known.lacks(fmt.Sprintf("Consul has not said for %s who may reach %s", age.Round(time.Second), destination))}
	}
	d := known.set.Decide(source, destination, r)
	if age > s.p.Fresh {
		d.Stale, d.Reason = true, known.lacks(fmt.Sprintf("Consul has not said for %s who may reach %s, so nothing new begins", age.Round(time.Second), destination))
	}
	return d
}

// watched finds the watch of a destination, or begins one; nil: there are too many.
func (s *Server) watched(destination string) *watch {
	s.mu.RLock()
	w := s.watches[destination]
	s.mu.RUnlock()
	if w != nil {
		return w
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w = s.watches[destination]; w != nil || len(s.watches) >= MaxDestinations {
		return w
	}
	w = &watch{name: destination}
	s.watches[destination] = w
	select {
	case s.bell <- struct{}{}:
	default: // it rings already
	}
	return w
}

// all watches, in one order.
func (s *Server) all() []*watch {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]*watch, 0, len(s.watches))
	for _, w := range s.watches {
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b *watch) int { return cmp.Compare(a.name, b.name) })
	return out
}

// Run watches until ctx ends and calls changed after every change. A server that cannot
// be asked is no error: it is asked again.
func (s *Server) Run(ctx context.Context, changed func()) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		followed := map[*watch]bool{}
		for {
			for _, w := range s.all() {
				if !followed[w] {
					followed[w] = true
					g.Go(func() error { return s.follow(ctx, w, changed) })
				}
			}
			select {
			case <-ctx.Done():
				return nil
			case <-s.bell:
			}
		}
	})
	return g.Wait()
}

// refreshAtOnce bounds the questions of Refresh.
const refreshAtOnce = 8

// Refresh asks once about every destination that is watched. The first failure is the
// error; what was answered counts.
func (s *Server) Refresh(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(refreshAtOnce)
	for _, w := range s.all() {
		g.Go(func() error {
			sent := s.p.Elapsed()
			a, err := s.p.Source.Match(ctx, w.name, 0, 0)
			if err == nil {
				_, err = s.learn(w, a, sent)
			}
			return err
		})
	}
	return g.Wait()
}

// silent is what is said where no intention decides: refused mends it.
const silent = refused.NoIntention
