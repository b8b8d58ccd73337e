package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/supervise/protocol/supervisev1"
	"bivouac/edge/supervise/protocol/supervisev1/supervisev1connect"
)

// script is steps of the scripted adapter: commands of the shell, then more.
func script(commands []string, more ...string) string {
	var steps []string
	for _, c := range commands {
		b, _ := json.Marshal(map[string]any{"command": c})
		steps = append(steps, `{"tool":{"alias":"shell","arguments":`+string(b)+`}}`)
	}
	return `{"steps":[` + strings.Join(append(steps, more...), ",") + `]}`
}

func toolStep(alias string, arguments any) string {
	b, _ := json.Marshal(arguments)
	return fmt.Sprintf(`{"tool":{"alias":%q,"arguments":%s}}`, alias, b)
}

// daemonize leaves a process in a session of its own, twice forked, that would
// write into the workspace for as long as it lives.
func daemonize(mark string) string {
	return "(setsid sh -c 'setsid sh -c \"while :; do date +%s%N > /workspace/" + mark + "; sleep 0.02; done\" & ' &) ; " +
		"while ! test -s /workspace/" + mark + "; do sleep 0.02; done; echo up; sleep 600"
}

// beats reads what a daemonized process writes.
func beats(cfg Config, mark string) string {
	b, _ := os.ReadFile(filepath.Join(cfg.workspaceDir(), mark))
	return string(b)
}

// waitFor polls until ok; the test's own deadline bounds it.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-t.Context().Done():
			t.Fatalf("waiting for %s: %v", what, context.Cause(t.Context()))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// dead reports that nothing writes any more: two looks, many periods apart.
func dead(t *testing.T, cfg Config, mark string) {
	t.Helper()
	before := beats(cfg, mark)
	time.Sleep(200 * time.Millisecond)
	if after := beats(cfg, mark); after != before {
		t.Errorf("a process of the attempt still writes: %q, then %q", before, after)
	}
}

// Without renewal, on a machine that cannot freeze, the relay closes and every
// process is killed, a daemon in a session of its own included; no result is made
// up for it. INV-20.
func TestAuthorityLossKills(t *testing.T) {
	cfg := real(t, &broker{})
	seen(cfg).Freezer = ""
	r := start(t, cfg)
	terms := func(ttl int64) *runnerv1.LeaseTerms {
		return &runnerv1.LeaseTerms{Fence: 1<<32 + 1, AuthorityTtlMs: ttl, RetentionMs: 600_000, Capability: capability}
	}
	r.handOver(scripted(script([]string{daemonize("beat")})), "", terms(600_000))
	waitFor(t, "the daemonized process", func() bool { return beats(cfg, "beat") != "" })
	// The positive twin: renewed, it lives on.
	_, err := r.client.Renew(t.Context(), &supervisev1.RenewRequest{Terms: terms(600_000)})
	must(t, err)
	alive := beats(cfg, "beat")
	waitFor(t, "another beat", func() bool { return beats(cfg, "beat") != alive })

	_, err = r.client.Renew(t.Context(), &supervisev1.RenewRequest{Terms: terms(1)})
	must(t, err)
	waitFor(t, "the loss", func() bool {
		h, err := r.client.Hello(t.Context(), &supervisev1.HelloRequest{})
		must(t, err)
		return h.Finished
	})
	dead(t, cfg, "beat")
	_, err = r.client.Renew(t.Context(), &supervisev1.RenewRequest{Terms: terms(600_000)})
	if protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeLeaseExpired {
		t.Errorf("a renewal after the loss: %v", err)
	}
	for _, rec := range r.records(0, func(rec *runnerv1.Record) bool { return rec.GetLoopEvent() != nil }) {
		if rec.GetResult() != nil {
			t.Errorf("a result was made up: %v", rec)
		}
	}
	_, err = r.client.Stop(t.Context(), &supervisev1.StopRequest{Reason: "the lease is over"})
	must(t, err)
	res, all := r.result()
	if res.Status != "failed" || res.Code != protocol.ResultInterrupted {
		t.Errorf("after the order to end: %+v", res)
	}
	r.acknowledge(all)
}

// Stop answers when no process is left.
func TestStop(t *testing.T) {
	cfg := real(t, &broker{})
	r := start(t, cfg)
	r.handOver(scripted(script([]string{daemonize("beat")})), "", nil)
	waitFor(t, "the daemonized process", func() bool { return beats(cfg, "beat") != "" })
	_, err := r.client.Stop(t.Context(), &supervisev1.StopRequest{Reason: "the person cancelled the turn"})
	must(t, err)
	dead(t, cfg, "beat")
	res, all := r.result()
	if res.Status != "cancelled" || res.Message != "the person cancelled the turn" {
		t.Errorf("result %+v", res)
	}
	if _, err := r.client.Begin(t.Context(), r.begin); err != nil {
		t.Errorf("the same work handed over again: %v", err)
	}
	r.acknowledge(all)
}

// workerPIDs are processes below this one that run the attempt's worker binary as a
// worker: others may be tested on this machine at the same time.
func workerPIDs(t *testing.T) (pids []int) {
	entries, err := os.ReadDir("/proc")
	must(t, err)
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		args, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if string(args) == WorkerInside+"\x00" && below(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// below reports a descendant of this process.
func below(pid int) bool {
	for pid > 1 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, ok := strings.Cut(string(stat), ") ")
		var state string
		if _, serr := fmt.Sscan(rest, &state, &pid); err != nil || !ok || serr != nil {
			return false
		}
		if pid == os.Getpid() {
			return true
		}
	}
	return false
}

// A killed worker is a known end: nothing runs, and the last checkpoint is there
// for another attempt, which goes on from its files and its state.
func TestWorkerIsKilled(t *testing.T) {
	b := &broker{}
	cfg := real(t, b)
	dir := repository(t, map[string]string{"a.txt": "one\n"})
	before := workerPIDs(t)
	r := start(t, cfg)
	r.handOver(scripted(script([]string{"echo two > a.txt", daemonize("beat")})), dir, nil)
	waitFor(t, "the daemonized process", func() bool { return beats(cfg, "beat") != "" })
	var victim int
	for _, pid := range workerPIDs(t) {
		if !slices.Contains(before, pid) {
			victim = pid
		}
	}
	p, err := os.FindProcess(victim)
	must(t, err)
	must(t, p.Kill())
	res, all := r.result()
	if res.Status != "failed" || res.Code != protocol.ResultInterrupted {
		t.Errorf("result %+v", res)
	}
	dead(t, cfg, "beat")
	var last *runnerv1.Checkpoint
	for _, rec := range all {
		if c := rec.GetCheckpoint(); c != nil {
			last = c
		}
	}
	if last == nil || !strings.Contains(r.patch(last.PatchDigest), "+two") {
		t.Fatalf("no checkpoint with the change: %v", last)
	}
	patch := r.patch(last.PatchDigest)
	r.acknowledge(all)

	next := start(t, real(t, b))
	state, err := deterministic.Marshal(scripted(script([]string{"cat a.txt; echo three > b.txt"})))
	must(t, err)
	turn := &runnerv1.TurnWork{Spec: state, Trust: "untrusted", CheckpointPatchDigest: next.blob([]byte(patch))}
	turn.WorkspaceDigest = next.packed(dir)
	next.handOverWork(turn, nil)
	res, all = next.result()
	got := toolResults(t, all)
	if len(got) != 1 || got[0].Text != "two\n" {
		t.Errorf("the next attempt saw %v", got)
	}
	if p := next.patch(res.PatchDigest); !strings.Contains(p, "+two") || !strings.Contains(p, "+three") {
		t.Errorf("the turn's patch lacks a part:\n%s", p)
	}
	next.acknowledge(all)
}

// The supervisor works on while the daemon is away, and a new daemon finds the
// records and the request that waits for an answer.
func TestReattach(t *testing.T) {
	cfg := real(t, &broker{})
	r := start(t, cfg)
	r.handOver(scripted(script([]string{"echo one"}, `{"tool":{"alias":"forecast","arguments":{"city":"Bern"}}}`, toolStep("shell", map[string]string{"command": "echo two"}))), "", nil)
	all := r.records(0, func(rec *runnerv1.Record) bool { return rec.GetToolRequested() != nil })
	asked := all[len(all)-1].GetToolRequested()
	if asked.Alias != "forecast" || asked.Arguments != `{"city":"Bern"}` || asked.CallId != "step_1" {
		t.Errorf("asked %v", asked)
	}
	r.http.CloseIdleConnections() // the old daemon is gone

	r.http = Client(cfg.Dir)
	r.client = supervisev1connect.NewSuperviseServiceClient(r.http, "http://supervisor")
	hello, err := r.client.Hello(t.Context(), &supervisev1.HelloRequest{})
	must(t, err)
	if !hello.Begun || hello.Finished || hello.AttemptId != cfg.Attempt.String() || hello.JournalSeq < asked0(all) || hello.Fence != r.begin.Terms.Fence {
		t.Errorf("hello %v", hello)
	}
	if _, err := r.client.Begin(t.Context(), r.begin); err != nil {
		t.Errorf("the claim handed over again: %v", err)
	}
	answer, err := deterministic.Marshal(&runtimev1.ToolResult{CallId: asked.CallId, Status: runtimev1.ResultStatus_RESULT_STATUS_OK, Text: "rain"})
	must(t, err)
	for range 2 { // deliveries repeat
		_, err = r.client.Answer(t.Context(), &supervisev1.AnswerRequest{CallId: asked.CallId, Result: answer})
		must(t, err)
	}
	rest := r.records(asked0(all), isResult)
	var texts []string
	for _, res := range toolResults(t, append(all, rest...)) {
		texts = append(texts, res.Text)
	}
	if strings.Join(texts, "|") != "one\n|rain|two\n" {
		t.Errorf("results %q", texts)
	}
	r.acknowledge(rest)
}

// INV-7: an attempt whose call needs a person ends with its cursor: the transcript
// with the call in flight, and the files as they are; no process is left, and no
// model call is made any more. A worker that gives no transcript cannot be parked.
func TestPark(t *testing.T) {
	b := &broker{answer: func(_ context.Context, req *runtimev1.ModelRequest, _ func(string) error) (*runtimev1.ModelDone, error) {
		if lastResult(req).GetCallId() == "" {
			return shellCall("c0", "echo done > work.txt"), nil
		}
		return call("c1", "forecast", `{}`), nil
	}}
	cfg := real(t, b)
	r := start(t, cfg)
	r.handOver(spec("native"), "", nil)
	all := r.records(0, func(rec *runnerv1.Record) bool { return rec.GetToolRequested() != nil })
	asked := all[len(all)-1].GetToolRequested()
	if !asked.CanPark {
		t.Fatalf("the supervisor cannot park: %v", asked)
	}
	for range 2 { // deliveries repeat
		_, err := r.client.Answer(t.Context(), &supervisev1.AnswerRequest{CallId: asked.CallId, Park: true})
		must(t, err)
	}
	res, rest := r.result()
	state := &runtimev1.LoopState{}
	if res.Status != protocol.ResultParked || res.Code != string(protocol.CodeApprovalRequired) || !unmarshal(res.State, state) {
		t.Fatalf("result %+v", res)
	}
	if state.Phase != runtimev1.Phase_PHASE_TOOL || state.Pending[0].Id != "c1" || len(b.calls) != 2 {
		t.Errorf("the cursor is in %s at %v after %d model calls", state.Phase, state.Pending, len(b.calls))
	}
	if p := r.patch(res.PatchDigest); !strings.Contains(p, "+done") {
		t.Errorf("the files are\n%s", p)
	}
	r.acknowledge(rest)

	other := start(t, real(t, &broker{}))
	other.handOver(scripted(script(nil, `{"tool":{"alias":"forecast","arguments":{"city":"Bern"}}}`)), "", nil)
	all = other.records(0, func(rec *runnerv1.Record) bool { return rec.GetToolRequested() != nil })
	if all[len(all)-1].GetToolRequested().CanPark {
		t.Error("a worker without a transcript is said to park")
	}
	other.stop()
}

func asked0(all []*runnerv1.Record) int64 { return all[len(all)-1].Seq }

// A supervisor that was killed leaves an interrupted attempt: the next one in
// the directory says so, and begins nothing. INV-14.
func TestSupervisorIsKilled(t *testing.T) {
	cfg := real(t, &broker{})
	r := start(t, cfg)
	r.handOver(scripted(script([]string{"echo one"}, `{"wait_ms":-1}`)), "", nil)
	r.records(0, func(rec *runnerv1.Record) bool {
		ev := &runtimev1.LoopEvent{}
		return rec.GetLoopEvent() != nil && unmarshal(rec.GetLoopEvent(), ev) && ev.GetToolFinished() != nil
	})
	kept := filepath.Join(t.TempDir(), "journal")
	must(t, os.CopyFS(kept, os.DirFS(cfg.journalDir()))) // as a kill at this moment leaves it
	r.stop()
	must(t, os.RemoveAll(cfg.journalDir()))
	must(t, os.CopyFS(cfg.journalDir(), os.DirFS(kept)))

	again := start(t, cfg)
	hello, err := again.client.Hello(t.Context(), &supervisev1.HelloRequest{})
	must(t, err)
	if !hello.Begun || !hello.Finished {
		t.Errorf("hello %v", hello)
	}
	_, err = again.client.Begin(t.Context(), r.begin)
	if protocol.CodeOf(protocol.FromConnect(err)) != protocol.CodeFailedPrecondition {
		t.Errorf("a second begin: %v", err)
	}
	res, all := again.result()
	if res.Code != protocol.ResultInterrupted || len(toolResults(t, all)) != 1 {
		t.Errorf("result %+v after %d records", res, len(all))
	}
	again.acknowledge(all)
}
