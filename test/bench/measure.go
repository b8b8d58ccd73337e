//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/workspace"
	"bivouac/server/api/apiv1"
)

// memory of each process at rest.
func (s *system) memory(ctx context.Context, _ int) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(3 * time.Second):
	}
	for _, p := range []struct {
		name   string
		target float64
	}{{"bivouac-server", 60}, {"bivouac-broker", 40}, {"bivouac-edge", 25}} {
		mb, ok := s.resident(p.name)
		if !ok {
			return fmt.Errorf("%s does not run", p.name)
		}
		report("idle_memory_"+p.name[len("bivouac-"):], mb, "MB", p.target, false)
	}
	return nil
}

func (s *system) session(ctx context.Context, agent string) (string, error) {
	res, err := s.api.Sessions.CreateSession(ctx, &apiv1.CreateSessionRequest{Agent: agent})
	return res.GetSession().GetId(), err
}

// turn submits a prompt and waits for its end through the event stream.
func (s *system) turn(ctx context.Context, session string, after int64, prompt, workspaceDigest string, n int) (*apiv1.Turn, int64, error) {
	res, err := s.api.Turns.SubmitTurn(ctx, &apiv1.SubmitTurnRequest{
		SessionId: session, MessageId: "bench-" + strconv.Itoa(n), Prompt: prompt, WorkspaceDigest: workspaceDigest})
	if err != nil {
		return nil, 0, err
	}
	ended := errors.New("ended")
	err = s.api.Watch(ctx, session, after, func(m *apiv1.WatchEventsResponse) error {
		if e := m.GetEvent(); e != nil {
			after = e.GetSeq()
			if e.GetType() == "turn.ended" && e.GetTurnId() == res.GetTurn().GetId() {
				return ended
			}
		}
		return nil
	})
	if !errors.Is(err, ended) {
		return nil, 0, err
	}
	got, err := s.api.Turns.GetTurn(ctx, &apiv1.GetTurnRequest{TurnId: res.GetTurn().GetId()})
	if err != nil {
		return nil, 0, err
	}
	if t := got.GetTurn(); t.GetState() != "COMPLETED" {
		return nil, 0, fmt.Errorf("%s ended as %s: %s", t.GetId(), t.GetState(), t.GetMessage())
	}
	return got.GetTurn(), after, nil
}

// deviceTurns measures a whole turn with one device action in it, the scripted
// provider's own time included, and the action alone. A turn waits for about ten syncs
// of the disk: after each, as many are made of a small file, so that a disk that stalls
// is known for what it is.
func (s *system) deviceTurns(ctx context.Context, n int) error {
	session, err := s.session(ctx, "assistant")
	if err != nil {
		return err
	}
	var whole, action, syncs []time.Duration
	var after int64
	for i := range n {
		t, at, err := s.turn(ctx, session, after, "read my note", "", i)
		if err != nil {
			return err
		}
		after = at
		whole = append(whole, t.GetEndedAt().AsTime().Sub(t.GetQueuedAt().AsTime()))
		for _, a := range t.GetActions() {
			action = append(action, a.GetOutcomeAt().AsTime().Sub(a.GetIntentAt().AsTime()))
		}
		more, err := s.syncs(10)
		if err != nil {
			return err
		}
		syncs = append(syncs, more...)
	}
	report("turn_overhead_p50", quantile(whole, 0.5), "ms", 20, false)
	report("turn_overhead_p99", quantile(whole, 0.99), "ms", 100, false)
	report("device_action_p50", quantile(action, 0.5), "ms", 15, false)
	report("device_action_p99", quantile(action, 0.99), "ms", 40, false)
	fmt.Printf("bench name=disk_sync_p50 value=%.4g unit=ms\n", quantile(syncs, 0.5))
	fmt.Printf("bench name=disk_sync_worst value=%.4g unit=ms\n", quantile(syncs, 1))
	return nil
}

// syncs writes a page and syncs it, some times, on the disk of the server's store.
func (s *system) syncs(n int) ([]time.Duration, error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "synced"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []time.Duration
	for range n {
		if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := f.Sync(); err != nil {
			return nil, err
		}
		out = append(out, time.Since(began))
	}
	return out, nil
}

var clockText = regexp.MustCompile(`\d{19}`)

// codingTurns measures from the committed activation to the first instruction of
// the first command in the sandbox; one model call lies between.
func (s *system) codingTurns(ctx context.Context, n int) error {
	digest, err := s.packed(ctx)
	if err != nil {
		return err
	}
	var starts []time.Duration
	for i := range max(5, n/4) {
		session, err := s.session(ctx, "coder")
		if err != nil {
			return err
		}
		t, _, err := s.turn(ctx, session, 0, "what time is it", digest, i)
		if err != nil {
			return err
		}
		at, err := s.firstInstruction(ctx, session)
		if err != nil {
			return err
		}
		starts = append(starts, at.Sub(t.GetActivatedAt().AsTime()))
	}
	report("start_latency_p50", quantile(starts, 0.5), "ms", 150, false)
	report("start_latency_p99", quantile(starts, 0.99), "ms", 500, false)
	return nil
}

// firstInstruction reads the time that the command printed.
func (s *system) firstInstruction(ctx context.Context, session string) (time.Time, error) {
	res, err := s.api.Events.ListEvents(ctx, &apiv1.ListEventsRequest{SessionId: session, Limit: 500})
	if err != nil {
		return time.Time{}, err
	}
	for _, e := range res.GetEvents() {
		if e.GetType() != "tool.finished" {
			continue
		}
		if m := clockText.FindString(readable(e.GetPayload())); m != "" {
			ns, err := strconv.ParseInt(m, 10, 64)
			return time.Unix(0, ns), err
		}
	}
	return time.Time{}, errors.New("the command's output is not in the events")
}

func (s *system) packed(ctx context.Context) (string, error) {
	repo := filepath.Join(s.dir, "repo")
	if err := os.MkdirAll(repo, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(repo, "a.txt"), []byte("a\n"), 0o600); err != nil {
		return "", err
	}
	if out, err := exec.Command("git", "-C", repo, "init", "-q").CombinedOutput(); err != nil {
		return "", fmt.Errorf("git init: %w\n%s", err, out)
	}
	f, err := os.Create(filepath.Join(s.dir, "repo.tar"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := workspace.Pack(ctx, repo, f); err != nil {
		return "", err
	}
	if _, err := f.Seek(0, 0); err != nil {
		return "", err
	}
	digest, _, err := s.api.PutArtifact(ctx, "workspace", f)
	return digest, err
}

// throughput runs many sessions at once for ten seconds.
func (s *system) throughput(ctx context.Context, _ int) error {
	const sessions, window = 32, 10 * time.Second
	var done atomic.Int64
	until := time.Now().Add(window)
	g, ctx := errgroup.WithContext(ctx)
	for range sessions {
		g.Go(func() error {
			session, err := s.session(ctx, "assistant")
			if err != nil {
				return err
			}
			var after int64
			for i := 0; time.Now().Before(until); i++ {
				if _, after, err = s.turn(ctx, session, after, "hello", "", i); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	report("completed_turns", float64(done.Load())/window.Seconds(), "turns/s", 200, true)
	return nil
}

// workerMemory looks at a worker while its model thinks.
func (s *system) workerMemory(ctx context.Context, _ int) error {
	session, err := s.session(ctx, "coder")
	if err != nil {
		return err
	}
	if _, err := s.api.Turns.SubmitTurn(ctx, &apiv1.SubmitTurnRequest{SessionId: session, MessageId: "rest", Prompt: "rest"}); err != nil {
		return err
	}
	var mb float64
	for range 30 {
		time.Sleep(100 * time.Millisecond)
		if now, ok := s.resident("bivouac-worker"); ok {
			mb = now
		}
	}
	if mb == 0 {
		return errors.New("no worker was seen")
	}
	report("idle_memory_worker", mb, "MB", 12, false)
	return nil
}
