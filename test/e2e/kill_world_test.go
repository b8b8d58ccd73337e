//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
)

// killWorld is the stack of one cell, the outside world, and a person who approves
// whatever is asked.
type killWorld struct {
	*stack.Stack
	t       *testing.T
	out     *outside
	edge    *stack.Edge
	tag     string
	session string
	claims  claims
}

// killConfig of a world: one process may stop at its label, and the two sides may
// be in networks of their own.
type killConfig struct {
	bin, tag      string
	fault         stack.Fault
	control, edge stack.Place
	coder, keeper string // definitions; empty: killCoder and killKeeper
	undecided     bool   // nobody approves by themselves
}

// newKillWorld starts everything.
func newKillWorld(t *testing.T, cfg killConfig) *killWorld {
	t.Helper()
	listen := cfg.control.Listen
	if listen == nil {
		listen = net.Listen
	}
	dir, err := os.MkdirTemp("", "kill-") // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if cfg.coder == "" {
		cfg.coder = killCoder
	}
	if cfg.keeper == "" {
		cfg.keeper = killKeeper
	}
	w := &killWorld{t: t, tag: cfg.tag, out: newOutside(t, filepath.Join(dir, "home", "notes"), listen)}
	s, err := stack.Start(t.Context(), stack.Config{
		Bin: cfg.bin, Dir: dir, Script: killScript, Agents: []string{cfg.keeper, cfg.coder}, Fault: cfg.fault, Control: cfg.control,
		Destinations: []stack.Destination{{Name: "ledger", URL: w.out.URL, Credential: w.out.Key}, {Name: "tickets", URL: w.out.URL + "/mcp", MCP: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Stack = s
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
	w.edge, err = s.AddEdge(t.Context(), stack.EdgeConfig{Name: "laptop", Folders: []string{"notes=" + w.out.Notes + ":rw"}, Place: cfg.edge})
	if err != nil {
		t.Fatal(err)
	}
	if !cfg.undecided {
		w.background(w.approve)
	}
	w.background(w.watchClaims)
	return w
}

// background repeats something until the test ends. While a process is down what
// it does fails, and that is no news.
func (w *killWorld) background(do func(context.Context)) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var g sync.WaitGroup
	g.Go(func() {
		for ctx.Err() == nil {
			do(ctx)
			pause(ctx, 25*time.Millisecond)
		}
	})
	w.t.Cleanup(func() {
		cancel()
		g.Wait()
	})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (w *killWorld) approve(ctx context.Context) {
	asked, err := w.API.Approvals.ListApprovals(ctx, &apiv1.ListApprovalsRequest{})
	if err != nil {
		return
	}
	for _, a := range asked.GetApprovals() {
		_, _ = w.API.Approvals.DecideApproval(ctx, &apiv1.DecideApprovalRequest{ApprovalId: a.GetId(), Digest: a.GetDigest(), Approve: true})
	}
}

// restored brings the machine back from a copy of its disk that is older than its
// claims.
func restored(w *killWorld) (started bool) {
	w.claims.mu.Lock() // whoever watches claims reads the list of machines
	e, err := w.edge.Restored("restored")
	w.claims.mu.Unlock()
	if err == nil {
		err = e.Daemon.Start()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return true
}

// edited is the person who changes the note while the runner is down, so that
// nothing shows any more who wrote it.
func edited(w *killWorld) (started bool) {
	if err := os.WriteFile(filepath.Join(w.out.Notes, w.tag+".txt"), []byte("my own words\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return false
}

// claims are the machines that hold a claim of each attempt, by what is on their disks.
type claims struct {
	mu sync.Mutex // guards by
	by map[string]map[string]bool
}

func (w *killWorld) watchClaims(context.Context) {
	w.claims.mu.Lock()
	defer w.claims.mu.Unlock()
	if w.claims.by == nil {
		w.claims.by = map[string]map[string]bool{}
	}
	for _, e := range w.Edges {
		ids, _ := e.Claims()
		for _, id := range ids {
			if w.claims.by[id] == nil {
				w.claims.by[id] = map[string]bool{}
			}
			w.claims.by[id][e.Name] = true
		}
	}
}

func (c *claims) count() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for id, machines := range c.by {
		out[id] = len(machines)
	}
	return out
}

// submitted is what the command line prints of a turn that it leaves running.
type submitted struct {
	ID      string `json:"id"`
	Session string `json:"session_id"`
}

// submit gives the agent a prompt through the command line and does not wait.
func (w *killWorld) submit(kind, prompt string) string {
	w.t.Helper()
	args := []string{"chat", "--agent", "keeper"}
	if kind == "coding" {
		args = []string{"run", "--agent", "coder"}
	}
	switch {
	case w.session != "":
		args = append(args, "--session", w.session)
	case kind == "coding":
		args = append(args, "--workspace", w.project())
	default:
		args = append(args, "--new")
	}
	var turn submitted
	if err := w.JSON(w.t.Context(), &turn, append(args, "--detach", prompt+w.tag)...); err != nil {
		w.t.Fatal(err)
	}
	w.session = turn.Session
	return turn.ID
}

// project is a small git folder.
func (w *killWorld) project() string {
	w.t.Helper()
	dir := filepath.Join(w.Home, "project")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "README"), []byte("a project\n"), 0o600)); err != nil {
		w.t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@example.test", "commit", "--allow-empty", "-qm", "first"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			w.t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return dir
}

// settled waits until a turn has ended and none of its actions is open, and
// returns it; at the end of all patience it returns the turn as it is.
func (w *killWorld) settled(id string, until time.Time) *apiv1.Turn {
	w.t.Helper()
	ctx, cancel := context.WithDeadline(w.t.Context(), until)
	defer cancel()
	var last *apiv1.Turn
	for {
		// Asked once more when the time is over, so that there is always an answer.
		res, err := w.API.Turns.GetTurn(w.t.Context(), &apiv1.GetTurnRequest{TurnId: id})
		if err == nil {
			last = res.GetTurn()
			if last.GetEndedAt() != nil && len(openActions(last)) == 0 {
				return last
			}
		}
		if ctx.Err() == nil {
			pause(ctx, 30*time.Millisecond)
			continue
		}
		if last == nil {
			w.t.Fatalf("the server does not answer: %v\n%s", err, w.tails())
		}
		return last
	}
}

var terminal = []string{"SUCCEEDED", "FAILED", "DENIED", "CANCELLED", "SUPERSEDED", "UNKNOWN"}

func openActions(t *apiv1.Turn) (open []string) {
	for _, a := range t.GetActions() {
		if !slices.Contains(terminal, a.GetState()) {
			open = append(open, a.GetTool()+" "+a.GetState())
		}
	}
	return open
}

// effectOf names the effect of an action; empty for one that only reads.
func effectOf(a *apiv1.Action) string {
	var args struct{ ID, Path string }
	_ = json.Unmarshal([]byte(a.GetArguments()), &args)
	switch a.GetTool() {
	case "http:post", "http:put", "mcp:post":
		return args.ID
	case "files.write":
		return strings.TrimSuffix(filepath.Base(args.Path), ".txt") + "-file"
	}
	return ""
}

func endOf(t *apiv1.Turn) ended {
	e := ended{State: t.GetState(), Reason: t.GetReason(), Open: openActions(t)}
	for _, a := range t.GetActions() {
		if a.GetState() == "UNKNOWN" && (a.GetEffect() == "R3" || a.GetEffect() == "R4") {
			e.Unknown = append(e.Unknown, effectOf(a))
		}
	}
	return e
}

// inbox lists the effects of unknown outcome.
func (w *killWorld) inbox() (ids []string) {
	w.t.Helper()
	res, err := w.API.Turns.ListUnknown(w.t.Context(), &apiv1.ListUnknownRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, u := range res.GetActions() {
		ids = append(ids, effectOf(u.GetAction()))
	}
	return ids
}

// lines of a turn's accepted patch, with the times that each was added, and those
// that the transcript says were added. A turn without a result has neither: its
// workspace is gone.
func (w *killWorld) lines(turn *apiv1.Turn) (added map[string]int, said []string) {
	w.t.Helper()
	added = map[string]int{}
	if turn.GetState() != "COMPLETED" || turn.GetPlacement() != "runner" {
		return added, nil
	}
	var patch bytes.Buffer
	if d := turn.GetPatchDigest(); d != "" {
		if err := w.API.GetArtifact(w.t.Context(), d, &patch); err != nil {
			w.t.Fatal(err)
		}
	}
	for line := range strings.Lines(patch.String()) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "+"+w.tag+"-"); ok {
			added[w.tag+"-"+id]++
		}
	}
	return added, w.saidLines(turn.GetId())
}

// toolEvent is what an event of a tool's call says.
type toolEvent struct {
	*apiv1.Event
	CallID string `json:"call_id"`
	Status string `json:"status"`
	Code   string `json:"code"`
}

func (w *killWorld) toolEvents(turn string) (out []toolEvent) {
	w.t.Helper()
	res, err := w.API.Events.ListEvents(w.t.Context(), &apiv1.ListEventsRequest{TurnId: turn, Limit: 500})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range res.GetEvents() {
		var d toolEvent
		if err := json.Unmarshal([]byte(e.GetData()), &d); err != nil {
			w.t.Fatal(err)
		}
		d.Event = e
		out = append(out, d)
	}
	return out
}

// resultCodes are the codes of the results that a turn's model got.
func (w *killWorld) resultCodes(turn string) (codes []string) {
	for _, e := range w.toolEvents(turn) {
		if e.GetType() == "tool.finished" {
			codes = append(codes, e.Code)
		}
	}
	return codes
}

// saidLines are the appends whose command ended well, by the session's events.
func (w *killWorld) saidLines(turn string) (ids []string) {
	asked := map[string]string{}
	for _, d := range w.toolEvents(turn) {
		e := d.Event
		switch e.GetType() {
		case "tool.requested":
			if _, rest, ok := strings.Cut(e.GetPayload(), "echo "); ok {
				asked[d.CallID], _, _ = strings.Cut(rest, " ")
			}
		case "tool.finished":
			if id := asked[d.CallID]; id != "" && d.Status == "ok" && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}
