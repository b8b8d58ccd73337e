//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// settle waits until all turns have ended, none of their actions and attempts is
// open, the machines are at rest and nothing is owed: by the product's own clocks,
// or until patience ends, and then the record says what is missing.
func (s *storm) settle() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), stormPatience)
	defer cancel()
	s.mu.Lock()
	waiting := slices.Clone(s.sessions)
	s.mu.Unlock()
	begun, last := time.Now(), ""
	for ctx.Err() == nil {
		waiting = slices.DeleteFunc(waiting, func(one *stormSession) bool {
			turns, err := s.turnsOf(ctx, one.id)
			return err == nil && !slices.ContainsFunc(turns, func(t *apiv1.Turn) bool { return t.GetEndedAt() == nil || len(openOf(t)) > 0 })
		})
		now := fmt.Sprintf("%d sessions", len(waiting))
		if len(waiting) == 0 {
			if now = s.unrest(ctx); now == "" {
				break
			}
		}
		if now != last {
			s.t.Logf("%s after the storm it waits for %s", time.Since(begun).Round(100*time.Millisecond), now)
			last = now
		}
		pause(ctx, 200*time.Millisecond)
	}
	s.t.Logf("settled in %s", time.Since(begun).Round(100*time.Millisecond))
}

// unrest is what is owed or left; empty: nothing.
func (s *storm) unrest(ctx context.Context) string {
	debt, err := s.API.Runners.ListCleanups(ctx, &apiv1.ListCleanupsRequest{Page: &apiv1.Page{Limit: 500}})
	if err != nil {
		return err.Error()
	}
	var owed []string
	for _, c := range debt.GetCleanups() {
		owed = append(owed, c.GetKind()+" "+c.GetSubject()+" ("+c.GetEvidence()+")")
	}
	left, err := s.Left()
	if err != nil {
		return err.Error()
	}
	return strings.Join(append(owed, left...), ", ")
}

func (s *storm) turnsOf(ctx context.Context, session string) ([]*apiv1.Turn, error) {
	list, err := s.owner[session].servers[0].Turns.ListTurns(ctx, &apiv1.ListTurnsRequest{SessionId: session, Page: &apiv1.Page{Limit: 100}})
	if err != nil {
		return nil, err
	}
	var out []*apiv1.Turn
	for _, t := range list.GetTurns() {
		whole, err := s.owner[session].servers[0].Turns.GetTurn(ctx, &apiv1.GetTurnRequest{TurnId: t.GetId()})
		if err != nil {
			return nil, err
		}
		out = append(out, whole.GetTurn())
	}
	return out, nil
}

func openOf(t *apiv1.Turn) []string {
	open := openActions(t)
	for _, a := range t.GetAttempts() {
		if !slices.Contains([]string{"SUCCEEDED", "FAILED", "CANCELLED", "INTERRUPTED", "UNKNOWN"}, a.GetState()) {
			open = append(open, a.GetId()+" "+a.GetState())
		}
	}
	return open
}

// record asks everybody what there is, and asks again where an answer does not come.
func (s *storm) record() *stormRecord {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), stormPatience)
	defer cancel()
	r := &stormRecord{sent: s.sent, effects: s.out.everything(), damaged: s.damaged(), fell: s.fell}
	for _, one := range s.sessions {
		p := s.owner[one.id]
		var turns []*apiv1.Turn
		s.ask(ctx, p, func(ctx context.Context, _ *client.Client) (err error) {
			turns, err = s.turnsOf(ctx, one.id)
			return err
		})
		s.prove(ctx, p, one)
		r.sessions = append(r.sessions, *one)
		for _, t := range turns {
			r.turns = append(r.turns, s.turnOf(ctx, p, t))
		}
	}
	for _, p := range s.people {
		var asked *apiv1.ListUnknownResponse
		s.ask(ctx, p, func(ctx context.Context, c *client.Client) (err error) {
			asked, err = c.Turns.ListUnknown(ctx, &apiv1.ListUnknownRequest{})
			return err
		})
		for _, u := range asked.GetActions() {
			r.inbox = append(r.inbox, u.GetAction().GetId())
		}
	}
	var debt *apiv1.ListCleanupsResponse
	s.ask(ctx, s.people[0], func(ctx context.Context, c *client.Client) (err error) {
		debt, err = c.Runners.ListCleanups(ctx, &apiv1.ListCleanupsRequest{Page: &apiv1.Page{Limit: 500}})
		return err
	})
	for _, c := range debt.GetCleanups() {
		r.debt = append(r.debt, fmt.Sprintf("%s %s after %d tries: %s", c.GetKind(), c.GetSubject(), c.GetTries(), c.GetEvidence()))
	}
	var err error
	if r.left, err = s.Left(); err != nil {
		s.t.Fatal(err)
	}
	for _, pattern := range []string{s.out.Notes, s.Path("desk", "notes")} {
		staged, err := filepath.Glob(filepath.Join(pattern, ".*"))
		if err != nil {
			s.t.Fatal(err)
		}
		r.left = append(r.left, staged...)
	}
	for _, e := range s.Edges {
		claims, err := e.Claims()
		if err != nil {
			s.t.Fatal(err)
		}
		for _, id := range claims {
			r.left = append(r.left, "on "+e.Name+" the claim of "+id)
		}
	}
	return r
}

// ask has a person ask until there is an answer, and ends the test without one.
func (s *storm) ask(ctx context.Context, p *stormPerson, call func(context.Context, *client.Client) error) {
	s.t.Helper()
	if err := p.ask(ctx, rand.New(rand.NewPCG(0, 0)), call); err != nil {
		s.t.Fatal(err)
	}
}

// prove reads a session's whole record, and has the server prove it. An event that
// comes in between is no gap: then it looks again.
func (s *storm) prove(ctx context.Context, p *stormPerson, into *stormSession) {
	s.t.Helper()
	for range 3 {
		into.events = s.eventsOf(ctx, p, into.id)
		into.counted, into.broken = 0, ""
		s.ask(ctx, p, func(ctx context.Context, c *client.Client) error {
			res, err := c.Events.VerifyEvents(ctx, &apiv1.VerifyEventsRequest{SessionId: into.id})
			switch code := protocol.CodeOf(protocol.FromConnect(err)); {
			case err == nil:
				into.counted = res.GetEvents()
			case code.Retryable(), code == protocol.CodeDeadlineExceeded:
				return err
			default:
				into.broken = err.Error()
			}
			return nil
		})
		if into.broken != "" || into.counted == int64(len(into.events)) {
			return
		}
	}
}

// eventsOf a session, hash by sequence.
func (s *storm) eventsOf(ctx context.Context, p *stormPerson, session string) map[int64]string {
	s.t.Helper()
	const page = 500
	out := map[int64]string{}
	for after := int64(0); ; {
		var res *apiv1.ListEventsResponse
		s.ask(ctx, p, func(ctx context.Context, c *client.Client) (err error) {
			res, err = c.Events.ListEvents(ctx, &apiv1.ListEventsRequest{SessionId: session, AfterSeq: after, Limit: page})
			return err
		})
		for _, e := range res.GetEvents() {
			out[e.GetSeq()] = fmt.Sprintf("%x", e.GetHash())
			after = max(after, e.GetSeq())
		}
		if len(res.GetEvents()) < page {
			return out
		}
	}
}

func (s *storm) turnOf(ctx context.Context, p *stormPerson, t *apiv1.Turn) stormTurn {
	s.t.Helper()
	out := stormTurn{id: t.GetId(), session: t.GetSessionId(), state: t.GetState(), reason: t.GetReason(), message: t.GetMessage(), open: openOf(t)}
	for _, a := range t.GetActions() {
		out.actions = append(out.actions, stormAction{a.GetId(), a.GetTool(), a.GetState(), stormEffect(a), a.GetReason()})
	}
	for _, a := range t.GetAttempts() {
		out.attempts = append(out.attempts, a.GetId())
	}
	if t.GetPlacement() == "runner" && t.GetState() == "COMPLETED" {
		out.lines, out.said = s.linesOf(ctx, p, t)
	}
	return out
}

// linesOf are the lines that a turn's accepted patch adds, and those of which its
// transcript says that they were added. A turn without a result has neither: its
// workspace is gone.
func (s *storm) linesOf(ctx context.Context, p *stormPerson, t *apiv1.Turn) (added map[string]int, said []string) {
	s.t.Helper()
	_, tag, _ := strings.Cut(t.GetPrompt(), " ")
	added = map[string]int{}
	var patch bytes.Buffer
	if d := t.GetPatchDigest(); d != "" {
		s.ask(ctx, p, func(ctx context.Context, c *client.Client) error {
			patch.Reset()
			return c.GetArtifact(ctx, d, &patch)
		})
	}
	for line := range strings.Lines(patch.String()) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "+"+tag+"-line"); ok {
			added[tag+"-line"+n]++
		}
	}
	var res *apiv1.ListEventsResponse
	s.ask(ctx, p, func(ctx context.Context, c *client.Client) (err error) {
		res, err = c.Events.ListEvents(ctx, &apiv1.ListEventsRequest{TurnId: t.GetId(), Limit: 500})
		return err
	})
	asked := map[string]string{}
	for _, e := range res.GetEvents() {
		var d toolEvent
		if err := json.Unmarshal([]byte(e.GetData()), &d); err != nil {
			s.t.Fatal(err)
		}
		if _, rest, ok := strings.Cut(e.GetPayload(), "echo "); ok && e.GetType() == "tool.requested" {
			asked[d.CallID], _, _ = strings.Cut(rest, " ")
		}
		if id := asked[d.CallID]; e.GetType() == "tool.finished" && id != "" && d.Status == "ok" && !slices.Contains(said, id) {
			said = append(said, id)
		}
	}
	return added, said
}

// damaged are notes that hold something else than what was to be written, whole.
func (s *storm) damaged() (bad []string) {
	s.t.Helper()
	for _, folder := range []string{s.out.Notes, s.Path("desk", "notes")} {
		notes, err := filepath.Glob(filepath.Join(folder, "*.txt"))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, name := range notes {
			b, err := os.ReadFile(name)
			if err != nil {
				s.t.Fatal(err)
			}
			if tag := strings.TrimSuffix(filepath.Base(name), ".txt"); string(b) != tag+"-file\n" {
				bad = append(bad, fmt.Sprintf("%s holds %q", name, b))
			}
		}
	}
	return bad
}
