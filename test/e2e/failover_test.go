//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
	"bivouac/server/store/storetest/pgcluster"
	"bivouac/test/e2e/stack"
)

// failoverAgent posts once a turn, and some of its turns look at a folder of a
// machine: model calls, an outside effect and a runner are all on the way.
const failoverAgent = `
agent "keeper" {
  profile       = "enterprise"
  placement     = "service"
  data_boundary = "internal"
  instructions  = "You keep the books."
  model { route = "scripted" }
  device_tools = ["files.list"]
  limits { max_queued = 50 }
` + killPost + killLease + `
}
`

const failoverScript = `
rule "post" {
  when {
    user_matches = "enter (?P<tag>\\S+)"
    results      = 0
  }
  call "post" { arguments = { id = "${user.tag}" } }
}
rule "look" {
  when {
    user_contains = "and look"
    results       = 1
  }
  call "files_list" { arguments = { path = "notes" } }
}
rule "done" {
  when { user_contains = "enter" }
  text = "It is entered."
}
`

// pairWorld is two servers on one PostgreSQL.
type pairWorld struct {
	*stack.Stack
	t   *testing.T
	out *outside

	mu    sync.Mutex // guards turns
	turns []entered
}

// entered is one turn that a server admitted.
type entered struct {
	id, tag string
	took    time.Duration // from the first try to the end that its client saw
}

func newPairWorld(t *testing.T) *pairWorld {
	t.Helper()
	db, err := pgcluster.New(t.Context(), "max_connections=100")
	if errors.Is(err, pgcluster.ErrAbsent) {
		t.Skip("SKIPPED: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Remove(); err != nil {
			t.Error(err)
		}
	})
	bin, err := stack.Build()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pair-") // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &pairWorld{t: t, out: newOutside(t, filepath.Join(dir, "home", "notes"), net.Listen)}
	w.Stack, err = stack.Start(t.Context(), stack.Config{
		Bin: bin, Dir: dir, Script: failoverScript, Agents: []string{failoverAgent}, Database: db.DSN(),
		Destinations: []stack.Destination{{Name: "ledger", URL: w.out.URL, Credential: w.out.Key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Kill(); err != nil {
			t.Error(err)
		}
	})
	if _, err := w.AddEdge(t.Context(), stack.EdgeConfig{Name: "laptop", Folders: []string{"notes=" + w.out.Notes}}); err != nil {
		t.Fatal(err)
	}
	return w
}

// person sends one prompt after another, each to a server in turn, and goes to the
// other one when it gets no answer. It stops when no more are to begin.
func (w *pairWorld) person(ctx context.Context, n int, more func() bool) error {
	servers := []*client.Client{w.API, w.SecondAPI}
	ask := func(i int, call func(*client.Client) error) error {
		for {
			err := call(servers[i%2])
			if err == nil || ctx.Err() != nil {
				return err
			}
			var answer *connect.Error // anything else is a connection that broke
			switch errors.As(err, &answer); protocol.CodeOf(protocol.FromConnect(err)) {
			case protocol.CodeInvalidArgument, protocol.CodePermissionDenied, protocol.CodeNotFound, protocol.CodeFailedPrecondition, protocol.CodeInternal:
				if answer == nil {
					break
				}
				return fmt.Errorf("person %d: %w", n, err)
			}
			i++
			pause(ctx, 10*time.Millisecond)
		}
	}
	var session string
	err := ask(n, func(c *client.Client) error {
		res, err := c.Sessions.CreateSession(ctx, &apiv1.CreateSessionRequest{Agent: "keeper", IdempotencyKey: fmt.Sprint("person ", n)})
		session = res.GetSession().GetId()
		return err
	})
	for i := 0; err == nil && more(); i++ {
		e := entered{tag: fmt.Sprintf("p%d-%d", n, i)}
		prompt := "enter " + e.tag
		if i%4 == 0 {
			prompt += " and look"
		}
		begun := time.Now()
		err = ask(n+i, func(c *client.Client) error {
			res, err := c.Turns.SubmitTurn(ctx, &apiv1.SubmitTurnRequest{SessionId: session, MessageId: e.tag, Prompt: prompt})
			e.id = res.GetTurn().GetId()
			return err
		})
		for ended := false; err == nil && !ended; {
			err = ask(n+i, func(c *client.Client) error {
				res, err := c.Turns.GetTurn(ctx, &apiv1.GetTurnRequest{TurnId: e.id})
				ended = over(res.GetTurn().GetState())
				return err
			})
			pause(ctx, 5*time.Millisecond)
		}
		e.took = time.Since(begun)
		w.mu.Lock()
		w.turns = append(w.turns, e)
		w.mu.Unlock()
	}
	return err
}

func over(state string) bool {
	return slices.Contains([]string{"COMPLETED", "FAILED", "CANCELLED", "UNKNOWN"}, state)
}

// One of two servers is killed in the middle of turns. No admission is lost, the
// other one takes up what was under way, and no effect happens twice (INV-3, INV-5,
// INV-15): what was accepted happened, and what happened was accepted or is known
// to be unknown. How long anybody waited is told, not judged.
func TestServerFailover(t *testing.T) {
	w := newPairWorld(t)
	const people = 6
	before, after := 3*time.Second, 5*time.Second
	if testing.Short() {
		before, after = time.Second, 2*time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	begun := time.Now()
	var group sync.WaitGroup
	for n := range people {
		group.Go(func() {
			if err := w.person(ctx, n, func() bool { return time.Since(begun) < before+after }); err != nil {
				t.Error(err)
			}
		})
	}
	pause(ctx, before)
	if err := w.Server.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Since(begun)
	group.Wait()
	if t.Failed() {
		t.Fatal(w.Second.Tail())
	}
	w.judge(ctx)
	w.print(killed, people)
}

// judge holds every turn against what the outside world saw.
func (w *pairWorld) judge(ctx context.Context) {
	seen := map[string]bool{}
	states := map[string]int{}
	for _, e := range w.turns {
		if seen[e.id] {
			w.t.Errorf("turn %s was given out twice", e.id)
		}
		seen[e.id] = true
		res, err := w.SecondAPI.Turns.GetTurn(ctx, &apiv1.GetTurnRequest{TurnId: e.id})
		if err != nil {
			w.t.Errorf("an admission was lost: %v", err)
			continue
		}
		state := res.GetTurn().GetState()
		states[state]++
		w.out.mu.Lock()
		times := w.out.posts[e.tag]
		w.out.mu.Unlock()
		switch {
		case times > 1:
			w.t.Errorf("%s was posted %d times", e.tag, times)
		case state == "COMPLETED" && times != 1, state == "FAILED", state == "CANCELLED":
			w.t.Errorf("turn %s (%s) is %s{%s}, posted %d times", e.id, e.tag, state, res.GetTurn().GetReason(), times)
		}
	}
	if len(w.turns) == 0 || states["COMPLETED"] < len(w.turns)*9/10 {
		w.t.Errorf("of %d turns: %v", len(w.turns), states)
	}
	w.t.Logf("%d turns: %v", len(w.turns), states)
}

func (w *pairWorld) print(killed time.Duration, people int) {
	var all []time.Duration
	for _, e := range w.turns {
		all = append(all, e.took)
	}
	slices.Sort(all)
	at := func(q float64) time.Duration { return all[min(len(all)-1, int(q*float64(len(all))))] }
	w.t.Logf("%d people, one server killed after %s; turns took p50 %s, p99 %s, at most %s", people, killed.Round(time.Millisecond), at(0.5), at(0.99), all[len(all)-1])
}
