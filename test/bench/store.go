//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/finding"
	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/server/api"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
	"bivouac/server/engine"
	"bivouac/server/scheduler"
	"bivouac/server/session"
	"bivouac/server/store"
	"bivouac/server/store/storetest/pgcluster"
)

// benchAgent queues: nothing activates its turns here.
const benchAgent = `
agent "bench" {
  profile       = "personal"
  data_boundary = "personal"
  instructions  = "You wait."
  model { route = "scripted" }
  limits { max_queued = 1000 }
}
`

// prompt of every turn.
const prompt = "What is in my notes?"

// Callers at once, and how long each figure is measured in each of the rounds.
const (
	callers = 64
	rounds  = 3
	round   = time.Second
)

// admissions compares durable admissions through the public API, over HTTP, with
// what the store commits when as many callers write the same records straight into
// it: in turns, so that a busy machine is as busy for both. What it commits of one
// small event each is told too: an admission writes a turn with its place in six
// indexes, its event and its prompt, which is another size of commit.
func admissions(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bivouac-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := admit(ctx, "sqlite", store.Config{Path: filepath.Join(dir, "bench.db")}); err != nil {
		return err
	}
	db, err := pgcluster.New(ctx, "max_connections=50", "fsync=on")
	if errors.Is(err, pgcluster.ErrAbsent) {
		fmt.Println("bench SKIPPED name=admissions_postgres:", err)
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(admit(ctx, "postgres", store.Config{DSN: db.DSN()}), db.Remove())
}

func admit(ctx context.Context, name string, at store.Config) (err error) {
	st, err := store.Open(ctx, at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	a, err := newAdmitter(ctx, st)
	if err != nil {
		return err
	}
	defer a.close()
	var small, commits, admitted float64
	for range rounds {
		for _, phase := range []struct {
			sum *float64
			do  func(context.Context, int) error
		}{{&small, a.note}, {&commits, a.commit}, {&admitted, a.submit}} {
			n, err := together(ctx, phase.do)
			if err != nil {
				return err
			}
			*phase.sum += n
		}
	}
	report("admissions_"+name, admitted/rounds, "1/s", 0, true)
	report("store_commits_"+name, commits/rounds, "1/s", 0, true)
	report("admissions_vs_commits_"+name, admitted/commits, "ratio", 0.3, true)
	report("admissions_vs_small_commits_"+name, admitted/small, "ratio", 0, true)
	return nil
}

// together runs do from many callers for a round and returns how often a second.
func together(ctx context.Context, do func(ctx context.Context, caller int) error) (float64, error) {
	var n atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	begun := time.Now()
	for c := range callers {
		g.Go(func() error {
			for time.Since(begun) < round {
				if err := do(ctx, c); err != nil {
					return err
				}
				n.Add(1)
			}
			return nil
		})
	}
	err := g.Wait()
	return float64(n.Load()) / time.Since(begun).Seconds(), err
}

// admitter is the public API over a store, without a broker: what is admitted waits.
type admitter struct {
	store    *store.Store
	server   *http.Server
	served   chan error
	apis     []*client.Client // a person and a tenant each, as queues are bounded by both
	sessions []protocol.SessionID
	n        atomic.Int64
}

func newAdmitter(ctx context.Context, st *store.Store) (*admitter, error) {
	e := engine.New(engine.Config{Store: st, Scheduler: scheduler.Embedded{}, Replica: protocol.NewID[protocol.ReplicaKind](time.Now(), rand.Reader),
		Elapsed: lease.Boottime, Limits: engine.Limits{MaxQueuedTenant: 1 << 30, MaxQueuedPrincipal: 1 << 30}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	a := &admitter{store: st, served: make(chan error, 1), server: &http.Server{Protocols: protocols, Handler: api.Handler(api.Config{
		Engine: e, Store: st, ExamineFunc: func(context.Context) *finding.Report { return &finding.Report{} }})}}
	go func() { a.served <- a.server.Serve(l) }()
	for i := range callers {
		if err := a.person(ctx, i, "http://"+l.Addr().String()); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// person has a tenant, an agent and two sessions: one takes events, one turns.
func (a *admitter) person(ctx context.Context, i int, url string) error {
	token := api.NewToken()
	if _, err := engine.AddOperator(ctx, a.store, engine.NewPrincipal{
		Tenant: fmt.Sprint("tenant-", i), Name: "bench", TokenHash: token.Hash()}); err != nil {
		return err
	}
	c, err := client.New(client.Config{URL: url, Token: token.Reveal()})
	if err != nil {
		return err
	}
	a.apis = append(a.apis, c)
	if _, err := c.Agents.ApplyAgent(ctx, &apiv1.ApplyAgentRequest{Filename: "bench.hcl", Source: benchAgent}); err != nil {
		return err
	}
	for range 2 {
		res, err := c.Sessions.CreateSession(ctx, &apiv1.CreateSessionRequest{Agent: "bench"})
		if err != nil {
			return err
		}
		a.sessions = append(a.sessions, protocol.SessionID(res.GetSession().GetId()))
	}
	return nil
}

func (a *admitter) close() {
	for _, c := range a.apis {
		c.Close()
	}
	a.server.Close()
	<-a.served
}

// commit writes what an admission writes, and nothing of what the API does for it.
func (a *admitter) commit(ctx context.Context, caller int) error {
	return a.store.UpdateGuarded(ctx, store.AsLoop("bench"), func(tx *store.Tx) error {
		message := fmt.Sprint("straight-", a.n.Add(1))
		at, err := tx.Standing(a.sessions[2*caller], message)
		if err != nil {
			return err
		}
		_, err = tx.Admit(at, session.Turn{ID: protocol.NewID[protocol.TurnKind](tx.Now, rand.Reader), MessageID: message, Prompt: prompt,
			State: session.Queued, Placement: session.PlacementService, QueuedAt: tx.Now, QueueDeadline: tx.Now.Add(time.Hour)},
			session.Event{Type: session.TurnQueued, Payload: prompt})
		return err
	})
}

// note writes one small event.
func (a *admitter) note(ctx context.Context, caller int) error {
	return a.store.Update(ctx, store.AsLoop("bench"), func(tx *store.Tx) error {
		_, err := tx.AppendEvents(a.sessions[2*caller], session.Event{Type: session.TurnMoved})
		return err
	})
}

// submit admits one turn; a session whose queue is full makes room for another.
func (a *admitter) submit(ctx context.Context, caller int) error {
	_, err := a.apis[caller].Turns.SubmitTurn(ctx, &apiv1.SubmitTurnRequest{SessionId: a.sessions[2*caller+1].String(),
		MessageId: fmt.Sprint("bench-", a.n.Add(1)), Prompt: prompt})
	if protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeQueueFull {
		return err
	}
	res, err := a.apis[caller].Sessions.CreateSession(ctx, &apiv1.CreateSessionRequest{Agent: "bench"})
	a.sessions[2*caller+1] = protocol.SessionID(res.GetSession().GetId())
	return err
}

// million is how many events the restarted server has.
const million = 1_000_000

// restart fills the server's store with events while nothing runs on it, starts
// everything again and waits until a turn could be taken.
func (s *system) restart(ctx context.Context, _ int) error {
	for _, p := range s.procs {
		s.end(p)
	}
	s.procs = nil
	path := filepath.Join(s.dir, "state", "server", "bivouac.db")
	if err := addEvents(ctx, path, million); err != nil {
		return err
	}
	args := []string{"dev", "--data", filepath.Join(s.dir, "state"), "--no-edge", "--model-script", "test/bench/testdata/model.hcl",
		"--public", "127.0.0.1:0", "--runner", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--model", "127.0.0.1:0"}
	if err := os.Truncate(filepath.Join(s.dir, "bivouac.out"), 0); err != nil {
		return err
	}
	begun := time.Now()
	if _, err := s.spawn("bivouac", args...); err != nil {
		return err
	}
	if err := s.untilReady(ctx); err != nil {
		return err
	}
	report("restart_with_1m_events", time.Since(begun).Seconds(), "s", 2, false)
	return nil
}

func addEvents(ctx context.Context, path string, n int) (err error) {
	st, err := store.Open(ctx, store.Config{Path: path})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	const batch = 2000
	text := strings.Repeat("something that was said ", 4)
	for done := 0; err == nil && done < n; done += batch {
		err = st.Update(ctx, store.AsLoop("bench"), func(tx *store.Tx) error {
			all, _, err := tx.Sessions(20, "")
			if err == nil && len(all) == 0 {
				err = errors.New("no session to fill")
			}
			if err != nil {
				return err
			}
			events := make([]session.Event, batch)
			for i := range events {
				events[i] = session.Event{Type: session.TurnMoved, Payload: text}
			}
			_, err = tx.AppendEvents(all[done/batch%len(all)].ID, events...)
			return err
		})
	}
	return err
}
