package jobs_test

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/jobs"
)

// own and others are two deployments.
const own, others = "aaaa", "bbbb"

// of a deployment.
func of(cfg jobs.Config, deployment string) *jobs.Allocations {
	return jobs.NewAllocations(cfg, jobs.NewWatch(cfg, slog.New(slog.DiscardHandler)), func() (string, error) { return deployment, nil })
}

// recordedAllocations are those that a real Nomad had when it was recorded.
func recordedAllocations(t *testing.T, name, deployment string) (*replayer, *jobs.Allocations) {
	t.Helper()
	r := &replayer{}
	r.replay(t, name)
	return r, of(jobs.Config{Address: "https://nomad.example.org:4646", Token: "t", MaxAllocations: 50, Rules: rules, Transport: r}, deployment)
}

// What was recorded of jobs of attempts is read as it was when it was recorded, and not by
// another deployment.
func TestRecordedAllocations(t *testing.T) {
	for _, c := range []struct {
		name string
		is   func(jobs.Allocated) bool
		says string
	}{
		{"allocation running", func(a jobs.Allocated) bool { return !a.Waits && !a.Ended && !a.Stopped }, "it runs"},
		{"allocation ended", func(a jobs.Allocated) bool { return a.Ended }, "its task has ended: exit code 0"},
		{"allocation failed", func(a jobs.Allocated) bool { return a.Ended }, "it failed on its node: exit code 3"},
		{"allocation no room", func(a jobs.Allocated) bool { return a.Waits }, "its node has not enough left of: memory"},
		{"allocation ineligible", func(a jobs.Allocated) bool { return a.Waits }, "its node takes nothing new, is down, or has left the node pool"},
		{"allocation unknown", func(a jobs.Allocated) bool { return !a.Waits && !a.Ended }, "Nomad does not know whether it runs"},
	} {
		_, a := recordedAllocations(t, c.name, own)
		all, err := a.List(t.Context())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !slices.ContainsFunc(all, func(is jobs.Allocated) bool {
			said, err := a.Explain(t.Context(), machineOf("00000000-0000-0000-0000-000000000000"), is.Job)
			return err == nil && c.is(is) && strings.Contains(said.Text, c.says) && strings.Contains(said.Remedy, "-namespace agents")
		}) {
			t.Errorf("%s: %+v", c.name, all)
		}
		if _, foreign := recordedAllocations(t, c.name, others); foreign != nil {
			if all, err := foreign.List(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("%s: another deployment lists %+v, %v", c.name, all, err)
			}
		}
	}
}

// How a task ended is said where Nomad saw it end, and on no other node.
func TestRecordedWord(t *testing.T) {
	for name, want := range map[string]string{"allocation running": "", "allocation ended": "exit code 0", "allocation failed": "exit code 3"} {
		r, a := recordedAllocations(t, name, own)
		all, err := a.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		node := ""
		for asked := range r.all {
			if id, ok := strings.CutPrefix(asked, "GET /v1/node/"); ok {
				node, _, _ = strings.Cut(id, "?")
			}
		}
		found := false
		for _, is := range all {
			said, over, err := a.Word(t.Context(), machineOf(node), is.Job)
			if err != nil {
				t.Fatal(err)
			}
			found = found || said == want && over == (want != "")
			if said, over, err := a.Word(t.Context(), machineOf("00000000-0000-0000-0000-000000000000"), is.Job); err != nil || said != "" || !over {
				t.Errorf("%s, on another node: %q, %v, %v", name, said, over, err)
			}
		}
		if !found {
			t.Errorf("%s: none of %+v is said to have ended with %q", name, all, want)
		}
	}
}

// Nomad's word that a job exists is fine where the job is the same attempt's, and a
// refusal where it is another deployment's or another attempt's. Away is not known.
func TestRecordedConflict(t *testing.T) {
	r, a := recordedAllocations(t, "allocation running", own)
	all, err := a.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	attempt, _, err := protocol.ParseAllocationJob(all[0].Job)
	if err != nil {
		t.Fatal(err)
	}
	node := ""
	for asked := range r.all {
		if id, ok := strings.CutPrefix(asked, "GET /v1/node/"); ok {
			node, _, _ = strings.Cut(id, "?")
		}
	}
	want := jobs.Allocation{Job: all[0].Job, Attempt: attempt.String(), Machine: machineOf(node)}
	if err := a.Start(t.Context(), want); err != nil {
		t.Errorf("its own: %v", err)
	}
	if err := of(jobs.Config{Address: "https://nomad.example.org:4646", Token: "t", Rules: rules, Transport: r}, others).Start(t.Context(), want); protocol.CodeOf(err) != protocol.CodeAlreadyExists {
		t.Errorf("another deployment's: %v", err)
	}
	want.Attempt = "att_00000000000000000000000000"
	if err := a.Start(t.Context(), want); protocol.CodeOf(err) != protocol.CodeAlreadyExists {
		t.Errorf("another attempt's: %v", err)
	}
	r.setDown(true)
	if _, err := a.List(t.Context()); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("Nomad is away: %v", err)
	}
}

// hanging answers nothing for as long as it is asked.
type hanging struct{}

func (hanging) RoundTrip(q *http.Request) (*http.Response, error) {
	<-q.Context().Done()
	return nil, q.Context().Err()
}

// A Nomad that is slow is not known to have taken or ended anything; what it was not asked
// for yet is refused, so that it can be asked for under another id.
func TestSlowAllocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := of(jobs.Config{Address: "https://nomad.example.org:4646", Token: "t", Rules: rules, Transport: hanging{}}, own)
		machine := machineOf("00000000-0000-0000-0000-000000000000")
		for name, c := range map[string]struct {
			ask  func(context.Context) error
			code protocol.Code
		}{
			"list": {func(ctx context.Context) error { _, err := a.List(ctx); return err }, protocol.CodeUnavailable},
			"stop": {func(ctx context.Context) error {
				return a.Stop(ctx, jobs.Allocated{Job: "bivouac-x-1", Namespace: "agents"})
			}, protocol.CodeUnavailable},
			"explain": {func(ctx context.Context) error { _, err := a.Explain(ctx, machine, "bivouac-x-1"); return err }, protocol.CodeUnavailable},
			"start": {func(ctx context.Context) error {
				return a.Start(ctx, jobs.Allocation{Job: "bivouac-x-1", Machine: machine})
			}, protocol.CodeFailedPrecondition},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			begun := time.Now()
			if err := c.ask(ctx); protocol.CodeOf(err) != c.code || time.Since(begun) != time.Second {
				t.Errorf("%s after %s: %v", name, time.Since(begun), err)
			}
			cancel()
		}
	})
}
