package supervise

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/twin"
	"bivouac/edge/supervise/protocol/supervisev1"
	"bivouac/edge/worker"
	"bivouac/edge/worker/tool"
)

// virtual is a configuration in which everything is of this process, so that it
// runs in a bubble: pipes for sockets, functions for processes.
func virtual(t *testing.T, b *broker) Config {
	cfg := newConfig(t, b)
	cfg.Listener = newMemory()
	cfg.WorkerFunc = worker.Run
	backend := twin.New(twin.Config{Programs: map[string]twin.Program{
		WorkerInside: func(_ context.Context, c twin.Call) int {
			return tool.Run(c.Argv[2], c.Workspace, c.Stdin, c.Stdout)
		},
		"/bin/sh": func(ctx context.Context, c twin.Call) int {
			if d, err := time.ParseDuration(strings.TrimPrefix(c.Argv[2], "sleep ")); err == nil {
				c.Sleep(ctx, d)
			}
			fmt.Fprintln(c.Stdout, "slept")
			return 0
		},
	}})
	cfg.Backend = &seeing{backend, sandbox.Report{Boundary: protocol.BoundaryProcess, Limits: protocol.LimitsCgroup}}
	return cfg
}

// terms of a lease with these durations.
func terms(ttl, retention time.Duration) *runnerv1.LeaseTerms {
	return &runnerv1.LeaseTerms{Fence: 1<<32 + 1, AuthorityTtlMs: ttl.Milliseconds(), RetentionMs: retention.Milliseconds(), Capability: capability}
}

func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// The same attempt as with real sandboxes, in virtual time, to the second.
func TestInVirtualTime(t *testing.T) {
	bubble(t, "a turn", func(t *testing.T) {
		b := &broker{answer: func(ctx context.Context, req *runtimev1.ModelRequest, delta func(string) error) (*runtimev1.ModelDone, error) {
			time.Sleep(7 * time.Second) // a slow provider
			switch last := lastResult(req); last.GetCallId() {
			case "":
				return call("c0", "write_file", `{"path":"d/new.txt","content":"hello\n"}`), delta("writing")
			case "c0":
				return call("c1", "read_file", `{"path":"d/new.txt"}`), nil
			case "c1":
				return shellCall("c2", "sleep 90s"), nil
			}
			return say("done: " + lastResult(req).GetText()), nil
		}}
		r := start(t, virtual(t, b))
		began := time.Now()
		r.handOver(spec("native"), "", nil)
		res, all := r.result()
		if o := outcomeOf(t, res); res.Status != "succeeded" || o.Text != "done: slept\n" {
			t.Errorf("result %+v", res)
		}
		if d := time.Since(began).Round(time.Second); d != 4*7*time.Second+90*time.Second {
			t.Errorf("the turn took %v of virtual time", d)
		}
		if p := r.patch(res.PatchDigest); !strings.Contains(p, "+hello") {
			t.Errorf("the patch is\n%s", p)
		}
		if got := toolResults(t, all); len(got) != 3 || got[1].Text != "hello\n" {
			t.Errorf("tool results %v", got)
		}
		r.acknowledge(all)
	})
	// INV-18: what a supervisor that was killed before it had begun had made.
	bubble(t, "a group is left", func(t *testing.T) {
		cfg := virtual(t, &broker{answer: answers(func(*runtimev1.ModelRequest) *runtimev1.ModelDone { return say("done") })})
		left, err := cfg.Backend.Group(t.Context(), cfg.Attempt.String(), sandbox.Limits{MemoryBytes: 1 << 20, CPUMillis: 100, PIDs: 4, DiskBytes: 1 << 20, Timeout: time.Hour, OutputBytes: 1 << 20})
		must(t, err)
		orphan := make(chan sandbox.Exit, 1)
		go func() {
			exit, _ := left.Run(context.Background(), sandbox.Process{Role: sandbox.RoleCode, Argv: []string{"/bin/sh", "-c", "sleep 30m"}, Stdout: io.Discard, Stderr: io.Discard})
			orphan <- exit
		}()
		synctest.Wait()
		began := time.Now()
		r := start(t, cfg)
		r.handOver(spec("native"), "", nil)
		if res, all := r.result(); res.Status != "succeeded" {
			t.Errorf("result %+v", res)
		} else {
			r.acknowledge(all)
		}
		if exit := <-orphan; !exit.Killed || time.Since(began) > time.Minute {
			t.Errorf("the orphan ended with %+v after %s", exit, time.Since(began))
		}
	})
	bubble(t, "authority ends to the second, retention too", func(t *testing.T) {
		r := start(t, virtual(t, &broker{}))
		began := time.Now()
		r.handOver(scripted(script([]string{"sleep 1h"})), "", terms(15*time.Second, time.Minute))
		for range 3 { // renewed every 5 s, it lives
			time.Sleep(5 * time.Second)
			_, err := r.client.Renew(t.Context(), &supervisev1.RenewRequest{Terms: terms(15*time.Second, time.Minute)})
			must(t, err)
		}
		finished := func() bool {
			h, err := r.client.Hello(t.Context(), &supervisev1.HelloRequest{})
			must(t, err)
			return h.Finished
		}
		time.Sleep(15*time.Second - 50*time.Millisecond)
		if finished() {
			t.Fatal("it ended before its authority did")
		}
		time.Sleep(100 * time.Millisecond)
		if !finished() {
			t.Fatal("it goes on without authority") // INV-20
		}
		<-r.done
		must(t, r.err)
		if d := time.Since(began).Round(time.Second); d != 15*time.Second+time.Minute {
			t.Errorf("the supervisor ended after %v", d)
		}
	})
	bubble(t, "an open model call ends with authority", func(t *testing.T) {
		ended := make(chan error, 1)
		b := &broker{answer: func(ctx context.Context, _ *runtimev1.ModelRequest, delta func(string) error) (*runtimev1.ModelDone, error) {
			err := delta("…")
			<-ctx.Done()
			ended <- err
			return nil, ctx.Err()
		}}
		r := start(t, virtual(t, b))
		began := time.Now()
		r.handOver(spec("native"), "", terms(15*time.Second, time.Minute))
		must(t, <-ended)
		if d := time.Since(began).Round(100 * time.Millisecond); d != 15*time.Second {
			t.Errorf("the call was open for %v", d)
		}
	})
	bubble(t, "a stalled worker", func(t *testing.T) {
		cfg := virtual(t, &broker{})
		cfg.WorkerIdle = time.Minute
		r := start(t, cfg)
		began := time.Now()
		r.handOver(scripted(script([]string{"sleep 100s"}, `{"wait_ms":-1}`)), "", nil)
		res, all := r.result()
		if res.Code != "worker_stalled" {
			t.Errorf("result %+v", res)
		}
		if d := time.Since(began).Round(time.Second); d != 160*time.Second {
			t.Errorf("it was ended after %v: a running command is progress", d)
		}
		r.acknowledge(all)
	})
	bubble(t, "a command's time limit", func(t *testing.T) {
		r := start(t, virtual(t, &broker{}))
		r.handOver(scripted(`{"steps":[`+toolStep("shell", map[string]any{"command": "sleep 1h", "timeout_ms": 3000})+`]}`), "", nil)
		res, all := r.result()
		got := toolResults(t, all)
		if res.Status != "succeeded" || len(got) != 1 || got[0].Code != string(protocol.CodeDeadlineExceeded) || !strings.Contains(got[0].Text, "3s") {
			t.Errorf("tool results %v of %+v", got, res)
		}
		r.acknowledge(all)
	})
	bubble(t, "the turn's wall time", func(t *testing.T) {
		r := start(t, virtual(t, &broker{answer: func(context.Context, *runtimev1.ModelRequest, func(string) error) (*runtimev1.ModelDone, error) {
			return shellCall("c", "sleep 1h"), nil
		}}))
		began := time.Now()
		r.handOver(spec("native"), "", terms(time.Hour, time.Hour))
		res, all := r.result()
		if o := outcomeOf(t, res); o.Reason != "max_wall" || time.Since(began).Round(time.Second) != 10*time.Minute {
			t.Errorf("outcome %v after %v", o, time.Since(began))
		}
		r.acknowledge(all)
	})
	bubble(t, "no work is handed over", func(t *testing.T) {
		r := start(t, virtual(t, &broker{}))
		<-r.done
		if protocol.CodeOf(r.err) != protocol.CodeUnavailable {
			t.Errorf("it ended with %v", r.err)
		}
	})
}

// What the hosts refuses, with the twin that it does not.
func TestWorkIsChecked(t *testing.T) {
	refused := func(change func(*supervisev1.BeginRequest), code protocol.Code) func(t *testing.T) {
		return func(t *testing.T) {
			r := start(t, virtual(t, &broker{}))
			r.handOver(scripted(`{"steps":[{"wait_ms":-1}]}`), "", nil)
			again := &supervisev1.BeginRequest{Work: r.begin.Work, SpecDigest: r.begin.SpecDigest, Terms: terms(time.Hour, time.Hour)}
			if _, err := r.client.Begin(t.Context(), again); err != nil {
				t.Fatalf("the positive twin: %v", err)
			}
			change(again)
			_, err := r.client.Begin(t.Context(), again)
			if got := protocol.CodeOf(protocol.FromConnect(err)); got != code {
				t.Errorf("got %v, want %s", err, code)
			}
			_, err = r.client.Stop(t.Context(), &supervisev1.StopRequest{Reason: "over"})
			must(t, err)
		}
	}
	bubble(t, "another digest", refused(func(b *supervisev1.BeginRequest) { b.SpecDigest = strings.Repeat("0", 64) }, protocol.CodeDataLoss))
	bubble(t, "another fence", refused(func(b *supervisev1.BeginRequest) { b.Terms.Fence++ }, protocol.CodeConflict)) // INV-14
	bubble(t, "a renewal of another fence", func(t *testing.T) {
		r := start(t, virtual(t, &broker{}))
		r.handOver(scripted(`{"steps":[{"wait_ms":-1}]}`), "", nil)
		stale := terms(time.Hour, time.Hour)
		stale.Fence--
		_, err := r.client.Renew(t.Context(), &supervisev1.RenewRequest{Terms: stale})
		if protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeStaleFence {
			t.Errorf("got %v", err)
		}
	})
	bubble(t, "untrusted code without control groups", func(t *testing.T) {
		cfg := virtual(t, &broker{})
		seen(cfg).Limits = protocol.LimitsRlimit
		r := start(t, cfg)
		r.handOver(scripted(`{"steps":[]}`), "", nil)
		res, all := r.result()
		if res.Status != "failed" || res.Code != string(protocol.CodePolicyDenied) {
			t.Errorf("result %+v", res) // INV-11
		}
		r.acknowledge(all)
	})
}

// The worker is not trusted: it gets what its spec names and nothing else.
func TestHostRefuses(t *testing.T) {
	bubble(t, "tools", func(t *testing.T) {
		r := start(t, virtual(t, &broker{}))
		r.handOver(scripted(`{"steps":[`+strings.Join([]string{
			toolStep("write_file", map[string]any{"path": "../out", "content": "x"}),
			toolStep("write_file", map[string]any{"path": "in", "content": "x", "mode": 1}),
			toolStep("read_file", map[string]any{"path": "absent"}),
			toolStep("shell", map[string]any{"command": ""}),
			toolStep("write_file", map[string]any{"path": "in", "content": "x"}),
		}, ",")+`]}`), "", nil)
		res, all := r.result()
		var codes []string
		for _, tr := range toolResults(t, all) {
			codes = append(codes, tr.Code)
		}
		if got := strings.Join(codes, ","); got != "exit_status,exit_status,exit_status,invalid_argument," || res.Status != "succeeded" {
			t.Errorf("codes %q of %+v", got, res)
		}
		r.acknowledge(all)
	})
	for name, step := range map[string]string{
		"an unknown tool": `{"tool":{"alias":"deploy","arguments":{}}}`,
	} {
		bubble(t, name, func(t *testing.T) {
			r := start(t, virtual(t, &broker{}))
			r.handOver(scripted(`{"steps":[`+step+`]}`), "", nil)
			res, all := r.result()
			for _, rec := range all {
				if rec.GetToolRequested() != nil {
					t.Errorf("it was passed on: %v", rec)
				}
			}
			if res.Code != protocol.ResultInterrupted { // the scripted worker takes no refusal
				t.Errorf("result %+v", res)
			}
			r.acknowledge(all)
		})
	}
	bubble(t, "another model", func(t *testing.T) {
		b := &broker{answer: func(context.Context, *runtimev1.ModelRequest, func(string) error) (*runtimev1.ModelDone, error) {
			return say("hello"), nil
		}}
		r := start(t, virtual(t, b))
		s := spec("native")
		r.handOver(s, "", nil)
		_, all := r.result()
		if b.count() != 1 {
			t.Errorf("%d calls reached the broker", b.count())
		}
		r.acknowledge(all)
	})
	bubble(t, "a broker that is away is asked again", func(t *testing.T) {
		away := 2
		b := &broker{answer: func(context.Context, *runtimev1.ModelRequest, func(string) error) (*runtimev1.ModelDone, error) {
			if away--; away >= 0 {
				return nil, protocol.Errorf(protocol.CodeUnavailable, "the feed is old")
			}
			return say("hello"), nil
		}}
		r := start(t, virtual(t, b))
		r.handOver(spec("native"), "", nil)
		res, all := r.result()
		if res.Status != "succeeded" || b.count() != 3 {
			t.Errorf("%d calls, result %+v", b.count(), res)
		}
		r.acknowledge(all)
	})
	bubble(t, "a refusal of the broker keeps its code", func(t *testing.T) {
		b := &broker{answer: func(context.Context, *runtimev1.ModelRequest, func(string) error) (*runtimev1.ModelDone, error) {
			return nil, protocol.Errorf(protocol.CodeBudgetExhausted, "the budget is used up")
		}}
		r := start(t, virtual(t, b))
		r.handOver(spec("native"), "", nil)
		res, all := r.result()
		if o := outcomeOf(t, res); o.Reason != "budget_exhausted" || b.count() != 1 {
			t.Errorf("outcome %v after %d calls", o, b.count())
		}
		r.acknowledge(all)
	})
}
