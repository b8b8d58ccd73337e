//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bivouac/server/api/apiv1"
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

// record asks everybody what there is.
func (s *storm) record() *stormRecord {
	s.t.Helper()
	ctx := s.t.Context()
	r := &stormRecord{sent: s.sent, effects: s.out.everything(), damaged: s.damaged(), fell: s.fell}
	for _, one := range s.sessions {
		p := s.owner[one.id]
		turns, err := s.turnsOf(ctx, one.id)
		if err != nil {
			s.t.Fatal(err)
		}
		s.prove(ctx, p, one)
		r.sessions = append(r.sessions, *one)
		for _, t := range turns {
			r.turns = append(r.turns, s.turnOf(ctx, p, t))
		}
	}
	for _, p := range s.people {
		asked, err := p.api.Turns.ListUnknown(ctx, &apiv1.ListUnknownRequest{})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, u := range asked.GetActions() {
			r.inbox = append(r.inbox, u.GetAction().GetId())
		}
	}
	debt, err := s.API.Runners.ListCleanups(ctx, &apiv1.ListCleanupsRequest{Page: &apiv1.Page{Limit: 500}})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range debt.GetCleanups() {
		r.debt = append(r.debt, fmt.Sprintf("%s %s after %d tries: %s", c.GetKind(), c.GetSubject(), c.GetTries(), c.GetEvidence()))
	}
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

// prove reads a session's whole record, and has the server prove it.
func (s *storm) prove(ctx context.Context, p *stormPerson, into *stormSession) {
	s.t.Helper()
	into.events = map[int64]string{}
	const page = 500
	for after := int64(0); ; {
		res, err := p.servers[0].Events.ListEvents(ctx, &apiv1.ListEventsRequest{SessionId: into.id, AfterSeq: after, Limit: page})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, e := range res.GetEvents() {
			into.events[e.GetSeq()] = fmt.Sprintf("%x", e.GetHash())
			after = max(after, e.GetSeq())
		}
		if len(res.GetEvents()) < page {
			break
		}
	}
	res, err := p.servers[0].Events.VerifyEvents(ctx, &apiv1.VerifyEventsRequest{SessionId: into.id})
	if err != nil {
		into.broken = err.Error()
	}
	into.counted = res.GetEvents()
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
		if err := p.servers[0].GetArtifact(ctx, d, &patch); err != nil {
			s.t.Fatal(err)
		}
	}
	for line := range strings.Lines(patch.String()) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "+"+tag+"-line"); ok {
			added[tag+"-line"+n]++
		}
	}
	res, err := p.servers[0].Events.ListEvents(ctx, &apiv1.ListEventsRequest{TurnId: t.GetId(), Limit: 500})
	if err != nil {
		s.t.Fatal(err)
	}
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
