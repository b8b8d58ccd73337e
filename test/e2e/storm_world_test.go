//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
	"bivouac/server/store/storetest/pgcluster"
	"bivouac/test/e2e/stack"
)

// storm is a deployment under load whose processes are killed.
type storm struct {
	*stack.Stack
	t      *testing.T
	out    *outside
	people []*stormPerson
	gauge  *stormGauge
	over   chan struct{} // closed when no more work is to begin

	mu       sync.Mutex // guards below
	sent     []sent
	sessions []*stormSession
	owner    map[string]*stormPerson // by session
	killed   map[string]int          // by role
	fell     []string
}

// newStorm starts the deployment: one server on SQLite, or two on PostgreSQL; a
// broker; two machines; and three people, of whom the third works on the first
// one's machine.
func newStorm(t *testing.T, postgres bool) *storm {
	t.Helper()
	cfg := stack.Config{Script: stormScript, Agents: []string{stormAgents, killCoder}}
	if postgres {
		cfg.Database = stormDatabase(t)
	}
	var err error
	if cfg.Bin, err = stack.Build(); err != nil {
		t.Fatal(err)
	}
	if cfg.Dir, err = os.MkdirTemp("", "storm-"); err != nil { // a socket's path has to be short
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(cfg.Dir); err != nil {
			t.Error(err)
		}
	})
	s := &storm{t: t, over: make(chan struct{}), owner: map[string]*stormPerson{}, killed: map[string]int{}}
	s.out = newOutside(t, filepath.Join(cfg.Dir, "home", "notes"), net.Listen)
	desk := filepath.Join(cfg.Dir, "desk", "notes")
	s.out.watch(t, desk)
	// Between an effect and its answer is where a kill tells most.
	s.out.dawdle = func() { time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond) }
	for _, folder := range []string{s.out.Notes, desk} {
		if err := os.WriteFile(filepath.Join(folder, "shared"), []byte("read me\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Destinations = []stack.Destination{{Name: "ledger", URL: s.out.URL, Credential: s.out.Key}}
	if s.Stack, err = stack.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	me := s.person(first(t, s.Stack))
	ann, bo := s.person(newPerson(t, s.Stack, "", "ann", false)), s.person(newPerson(t, s.Stack, "", "bo", false))
	me.addEdge(stack.EdgeConfig{Name: "laptop", Folders: []string{"notes=" + s.out.Notes + ":rw"}})
	ann.addEdge(stack.EdgeConfig{Name: "desk", Folders: []string{"notes=" + desk + ":rw"}})
	me.lend(bo)
	me.upload()
	ann.upload()
	return s
}

func stormDatabase(t *testing.T) string {
	t.Helper()
	db, err := pgcluster.New(t.Context(), "max_connections=100")
	if errors.Is(err, pgcluster.ErrAbsent) {
		t.Skip("SKIPPED LOUDLY: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Remove(); err != nil {
			t.Error(err)
		}
	})
	return db.DSN()
}

// person lets somebody use the agents, at every server.
func (s *storm) person(p *person) *stormPerson {
	s.t.Helper()
	out := &stormPerson{person: p}
	for _, url := range []string{s.URL(), s.SecondURL()} {
		if url == "" {
			continue
		}
		c, err := client.New(client.Config{URL: url, Token: p.token, HTTP: nil})
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(c.Close)
		out.servers = append(out.servers, c)
	}
	if len(s.people) > 0 { // the first one has grants
		for _, agent := range []string{"keeper", "coder"} {
			if _, err := p.api.Grants.CreateGrant(s.t.Context(), &apiv1.CreateGrantRequest{Agent: agent, Credentials: []string{"ledger"}}); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	s.people = append(s.people, out)
	return out
}

// lend lets another one use this person's machine.
func (p *stormPerson) lend(to *stormPerson) {
	p.t.Helper()
	mine, err := p.api.Runners.ListRunners(p.t.Context(), &apiv1.ListRunnersRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, r := range mine.GetRunners() {
		if r.GetName() != "laptop" {
			continue
		}
		_, err := p.api.Runners.PutBinding(p.t.Context(), &apiv1.PutBindingRequest{RunnerId: r.GetId(), PrincipalId: to.id, Actions: []string{"files.list", "files.read", "files.write"}})
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// upload packs a project by a first coding turn, whose workspace later ones name.
func (p *stormPerson) upload() {
	p.t.Helper()
	status, err := p.Edges[0].Status(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	if status.Boundary == "" {
		p.t.Logf("SKIPPED LOUDLY: nobody codes, this machine has no usable sandbox: %s", status.SandboxProblem)
		return
	}
	dir := p.project("project", map[string]string{"README": "a project\n"})
	p.workspace = p.completed(p.submit("run", "line first-"+p.name, "--agent", "coder", "--workspace", dir).ID).GetWorkspaceDigest()
}

// opened is the record of a new session.
func (s *storm) opened(p *stormPerson, id string) *stormSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	read := &stormSession{id: id, shown: map[int64]string{}}
	s.sessions = append(s.sessions, read)
	s.owner[id] = p
	return read
}

// load lets everybody work until the storm is over, and returns a function that
// waits for them. seed decides what they do, as far as time does not.
func (s *storm) load(ctx context.Context, seed uint64) (wait func() error) {
	var g sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	n := 0
	begin := func(p *stormPerson, agent string, kinds ...string) {
		n++
		name, rnd := fmt.Sprintf("%s%d", p.name, n), rand.New(rand.NewPCG(seed, uint64(n)<<33))
		g.Go(func() {
			if err := s.work(ctx, p, name, agent, rnd, kinds...); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	for _, p := range s.people {
		begin(p, "keeper", "keep", "note", "tell")
		begin(p, "keeper", "keep", "note")
		if p.workspace != "" {
			begin(p, "coder", "code", "line")
		}
	}
	return func() error {
		g.Wait()
		return errors.Join(errs...)
	}
}
