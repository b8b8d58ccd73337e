package engine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/engine"
	et "bivouac/server/engine/enginetest"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// begun submits a coding turn and lets the runner begin it.
func begun(t *testing.T, w *et.World, r *et.Runner) (session.Turn, *et.Held) {
	t.Helper()
	turn := w.Submit(w.Session("coder"), "fix it")
	w.Settle()
	wantState(t, w, turn.ID, session.RunningModel, "")
	h := r.Turn()
	h.Begin()
	w.Settle()
	return turn, h
}

func assistant(text string) *runtimev1.LoopEvent {
	return &runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_Message{Message: et.Text(text).Done.Message}}
}

func TestRunnerTurn(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		s := w.Session("coder")
		workspace := "sha256:" + digestOf("workspace")
		err := w.Store.Update(ctx(), w.Me(), func(tx *store.Tx) error {
			_, err := tx.PutArtifact(policy.Artifact{Digest: workspace, Tenant: w.Person.Tenant, Principal: w.Person.ID, Kind: "workspace", CreatedAt: tx.Now})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		a, err := submit(w, w.Me(), engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "fix it", WorkspaceDigest: workspace})
		if err != nil {
			t.Fatal(err)
		}
		w.Settle()
		h := r.Turn()
		spec := h.Spec()
		if spec.Messages[0].Blocks[0].GetText() != "fix it" || h.Work.GetTurn().WorkspaceDigest != workspace || h.Terms.Capability == "" {
			t.Fatalf("work %+v", h.Work)
		}
		if err := w.Engine.MayGetBlob(ctx(), r.Caller(), h.ID, h.Fence, workspace); err != nil {
			t.Errorf("its workspace: %v", err)
		}
		wantCode(t, "another blob", w.Engine.MayGetBlob(ctx(), r.Caller(), h.ID, h.Fence, "sha256:"+digestOf("other")), protocol.CodeNotFound)

		h.Begin()
		h.Event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ModelCallStarted{ModelCallStarted: &runtimev1.ModelCallStarted{Number: 1}}})
		calls := et.Calls(et.Call{ID: "c1", Alias: "shell", Arguments: `{"command":"go test"}`}, et.Call{ID: "c2", Alias: "note", Arguments: `{"text":"hi"}`}).Done.Message
		h.Event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_Message{Message: calls}})
		h.Event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ToolStarted{ToolStarted: calls.Blocks[0].GetToolCall()}})
		h.Event(&runtimev1.LoopEvent{Kind: &runtimev1.LoopEvent_ToolFinished{ToolFinished: &runtimev1.ToolResult{CallId: "c1",
			Status: runtimev1.ResultStatus_RESULT_STATUS_OK, Text: "key sk-aaaaaaaaaaaaaaaaaaaaaaaa ok"}}})
		h.Ask(et.Call{ID: "c2", Alias: "note", Arguments: `{"text":"hi"}`})
		w.Settle()
		if len(r.Answers) != 1 || r.Answers[0].CallId != "c2" {
			t.Fatalf("answers %v", r.Answers)
		}
		answer := &runtimev1.ToolResult{}
		if err := proto.Unmarshal(r.Answers[0].Result, answer); err != nil || answer.Text != "noted" {
			t.Errorf("answer %v, %v", answer, err)
		}
		patch := r.Upload(h, "the patch")
		h.Event(assistant("fixed"))
		h.Finish("fixed", patch)
		w.Settle()
		got := wantState(t, w, a.Turn.ID, session.Completed, "")
		if got.Answer != "fixed" || got.PatchDigest != patch || got.CostMicroUSD != 5 {
			t.Errorf("turn %+v", got)
		}
		for _, e := range w.Events(s.ID) {
			if strings.Contains(e.Payload, "sk-aaaa") {
				t.Errorf("event %d keeps what looks like a key", e.Seq)
			}
		}

		// The session's next turn starts from the accepted patch and the transcript.
		w.Submit(s, "and now")
		w.Settle()
		next := r.Turn()
		if !slices.Equal(next.Work.GetTurn().PatchDigests, []string{patch}) || next.Work.GetTurn().WorkspaceDigest != workspace {
			t.Errorf("the next turn's files: %+v", next.Work.GetTurn())
		}
		var roles []string
		for _, m := range next.Spec().Messages {
			roles = append(roles, m.Role.String())
		}
		want := []string{"ROLE_USER", "ROLE_ASSISTANT", "ROLE_TOOL", "ROLE_TOOL", "ROLE_ASSISTANT", "ROLE_USER"}
		if !slices.Equal(roles, want) {
			t.Errorf("the next turn sees %v", roles)
		}
	})
}

// A completed turn keeps what the supervisor says of its patch,
// and nothing of what the worker says there.
func TestCompletedTurnSaysWhatItsPatchLeavesOut(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		for given, want := range map[string]string{
			"": "",
			"left out of the patch: python (a link to /usr/bin/python3)": "left out of the patch: python (a link to /usr/bin/python3)",
		} {
			turn, h := begun(t, w, r)
			outcome, err := proto.Marshal(&runtimev1.Outcome{Kind: runtimev1.OutcomeKind_OUTCOME_KIND_COMPLETED, Text: "done", Message: "the worker's"})
			if err != nil {
				t.Fatal(err)
			}
			h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{Status: "succeeded", Message: given, Outcome: outcome}}})
			w.Settle()
			wantState(t, w, turn.ID, session.Completed, "")
			if got := w.Turn(turn.ID); got.Message != want || got.Answer != "done" {
				t.Errorf("message %q, answer %q, want %q", got.Message, got.Answer, want)
			}
		}
	})
}

// In a runner-placed turn a tool that needs an approval is refused, readably.
func TestRunnerTurnRefusesApprovals(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		h.Ask(et.Call{ID: "1", Alias: "files_write", Arguments: `{"path":"home/a","content":"b"}`})
		h.Ask(et.Call{ID: "2", Alias: "shell", Arguments: `{"command":"id"}`})
		h.Ask(et.Call{ID: "3", Alias: "files_read", Arguments: `{"path":7}`})
		h.Ask(et.Call{ID: "4", Alias: "files_read", Arguments: `{"path":"home/todo.txt"}`})
		w.Settle()
		var got []string
		for _, a := range r.Answers {
			res := &runtimev1.ToolResult{}
			if err := proto.Unmarshal(a.Result, res); err != nil {
				t.Fatal(err)
			}
			got = append(got, res.CallId+" "+res.Status.String()[len("RESULT_STATUS_"):]+" "+res.Code)
		}
		want := []string{"1 DENIED approval_required", "2 DENIED policy_denied", "3 FAILED invalid_argument", "4 OK "}
		if !slices.Equal(got, want) {
			t.Errorf("answers %q, want %q", got, want)
		}
		wantState(t, w, turn.ID, session.RunningModel, "")
	})
}

// INV-3: what comes under a stale fence is evidence and changes nothing.
func TestStaleFenceIsEvidence(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		h.Finish("late", "")
		result := h.Journal[len(h.Journal)-1]
		stale := int64(h.Fence) - 1
		resp, err := w.Engine.Report(ctx(), r.Caller(), &runnerv1.ReportRequest{AttemptId: h.ID.String(), Fence: stale, Records: []*runnerv1.Record{result}})
		if err != nil || !resp.EvidenceOnly {
			t.Fatalf("stale: %+v, %v", resp, err)
		}
		wantState(t, w, turn.ID, session.RunningModel, "")
		if types := w.Types(turn.Session); !slices.Contains(types, session.LateResult) {
			t.Errorf("no evidence in %v", types)
		}
		w.Settle() // the same records under the right fence
		wantState(t, w, turn.ID, session.Completed, "")
	})
}

// Records are accepted once, in order; a gap is asked for again.
func TestRecordsOnceInOrder(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		r.Reports = false
		turn := w.Submit(w.Session("coder"), "fix")
		w.Settle()
		h := r.Turn()
		h.Begin()
		h.Event(assistant("one"))
		h.Event(assistant("two"))
		send := func(seqs ...int) *runnerv1.ReportResponse {
			t.Helper()
			req := &runnerv1.ReportRequest{AttemptId: h.ID.String(), Fence: int64(h.Fence)}
			for _, n := range seqs {
				req.Records = append(req.Records, h.Journal[n-1])
			}
			resp, err := w.Engine.Report(ctx(), r.Caller(), req)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		for _, c := range []struct {
			seqs []int
			want int64
		}{{[]int{2}, 0}, {[]int{1}, 1}, {[]int{1, 3}, 1}, {[]int{1, 2, 3}, 3}, {[]int{2, 3}, 3}} {
			if got := send(c.seqs...).AcceptedSeq; got != c.want {
				t.Errorf("%v: accepted up to %d, want %d", c.seqs, got, c.want)
			}
		}
		answers := 0
		for _, typ := range w.Types(turn.Session) {
			if typ == session.ModelAnswered {
				answers++
			}
		}
		if answers != 2 {
			t.Errorf("%d answers recorded", answers)
		}
	})
}

// INV-14: the first claim wins; the same supervisor again gets the same answer.
func TestFirstClaimWins(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		other := w.Join("desktop", "files.read")
		r.Claims, other.Claims = false, false
		w.Submit(w.Session("coder"), "fix")
		w.Settle()
		var id protocol.AttemptID
		var offered *et.Runner
		err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) error {
			as, err := tx.AttemptsIn(0, "OFFERED")
			if err != nil {
				return err
			}
			id = as[0].ID
			for _, x := range w.Runners {
				if x.ID == as[0].Runner {
					offered = x
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		wrong := r
		if offered == r {
			wrong = other
		}
		claim := func(x *et.Runner, nonce string) (*runnerv1.ClaimResponse, error) {
			return w.Engine.Claim(ctx(), x.Caller(), &runnerv1.ClaimRequest{AttemptId: id.String(), Epoch: x.Epoch(), BootNonce: nonce})
		}
		_, err = claim(wrong, "n")
		wantCode(t, "a runner that was not offered it", err, protocol.CodeNotFound)
		first, err := claim(offered, "n1")
		if err != nil {
			t.Fatal(err)
		}
		again, err := claim(offered, "n1")
		if err != nil || again.Terms.Fence != first.Terms.Fence || again.SpecDigest != first.SpecDigest {
			t.Errorf("again: %+v, %v", again, err)
		}
		_, err = claim(offered, "n2")
		wantCode(t, "another supervisor", err, protocol.CodeConflict)
	})
}

// An offer that nobody claims goes elsewhere.
func TestUnclaimedOfferGoesElsewhere(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		other := w.Join("desktop", "files.read")
		r.Claims, other.Claims = false, false
		turn := w.Submit(w.Session("coder"), "fix")
		w.Settle()
		offered := func() protocol.RunnerID {
			var to protocol.RunnerID
			err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) error {
				a, err := tx.Attempt(w.Turn(turn.ID).Attempt)
				to = a.Runner
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return to
		}
		first := offered()
		w.Sleep(11 * time.Second)
		if second := offered(); second == first || second == "" {
			t.Errorf("offered to %s, then to %q", first, second)
		}
		x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
		if err != nil || !strings.Contains(x.WaitingFor, "claim") {
			t.Errorf("explain %+v, %v", x, err)
		}
		w.Sleep(2 * time.Minute)
		wantState(t, w, turn.ID, session.Failed, "not_placed")
	})
}

// A machine that declines is not asked again at once, though it is the only one: it
// would decline as fast as it is asked. What it said is what the turn waits for.
func TestDeclinedOfferRests(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		r.Claims = false
		turn := w.Submit(w.Session("coder"), "fix")
		w.Settle()
		attempt := func() (a execution.Attempt) {
			err := w.Store.View(ctx(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
				a, err = tx.Attempt(w.Turn(turn.ID).Attempt)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		for n := range 3 {
			if got := attempt().State; got != execution.AttemptOffered {
				t.Fatalf("offer %d: the attempt is %s", n, got)
			}
			err := w.Engine.Decline(ctx(), r.Caller(), &runnerv1.DeclineRequest{AttemptId: attempt().ID.String(), Epoch: r.Epoch(), Reason: "all slots are taken"})
			if err != nil {
				t.Fatal(err)
			}
			w.Settle()
			if a := attempt(); a.State != execution.AttemptQueued || !strings.Contains(a.DeferReason, "all slots are taken") {
				t.Fatalf("declined %d times: the attempt is %s, %q", n+1, a.State, a.DeferReason)
			}
			r.Claims = n == 2
			w.Sleep(time.Second)
		}
		if r.Whole() == nil {
			t.Error("the machine is not asked again")
		}
	})
}

// A worker that dies under its work is a known outcome: the turn goes on once
// from its checkpoint, and a second death ends it.
func TestWorkerDies(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		turn, h := begun(t, w, r)
		dead := &runnerv1.Record{Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{
			Status: "failed", Code: "interrupted", Message: "the worker ended before its work did"}}}
		h.Append(dead)
		w.Settle()
		second := r.Turn()
		if second == nil || second.ID == h.ID {
			t.Fatal("there is no new attempt")
		}
		wantState(t, w, turn.ID, session.RunningModel, "")
		second.Begin()
		second.Append(proto.CloneOf(dead))
		w.Settle()
		wantState(t, w, turn.ID, session.Failed, "interrupted")
	})
}

// Nothing fits: deferred with the reason, and explain says what would change it.
func TestNothingFits(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		r.Facts.Limits = "rlimit"
		r.Connect()
		turn := w.Submit(w.Session("coder"), "fix")
		w.Settle()
		wantState(t, w, turn.ID, session.Received, "")
		x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
		if err != nil || len(x.Runners) != 1 || x.Runners[0].Eligible || !strings.Contains(strings.Join(x.Runners[0].Reasons, " "), "cgroup") || len(x.Remedies) == 0 {
			t.Fatalf("explain %+v, %v", x, err)
		}
		r.Facts.Limits = "cgroup"
		r.Connect()
		w.Settle()
		wantState(t, w, turn.ID, session.RunningModel, "")
	})
}

// A machine with a worker that the server's record does not admit gets no turn: it
// waits, explain says what is there and what mends it, and device actions go on. Once
// it is updated the turn goes there. INV-11.
func TestOldWorkerWaits(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		w.Broker.Say(et.Script(et.Calls(et.Call{ID: "r", Alias: "read_file", Arguments: `{"path":"home/todo.txt"}`}), et.Text("done")))
		news := r.Facts.Harnesses
		turn := session.Turn{}
		for says, old := range map[string][]*runnerv1.Harness{
			"does not say which worker it has":                                       nil,
			"its worker is native 0.0.3 (protocol 1), and turns need 0.1.0 or newer": {{Name: "native", Version: "0.0.3", Protocol: 1}},
		} {
			r.Facts.Harnesses = old
			r.Connect()
			if turn.ID == "" {
				turn = w.Submit(w.Session("coder"), "fix it")
			}
			w.Settle()
			x := whyWaits(t, w, turn)
			if len(x.Runners) != 1 || x.Runners[0].Eligible || !strings.Contains(x.WaitingFor, says) || !strings.Contains(strings.Join(x.Remedies, "\n"), "install bivouac-edge 0.1.0 or newer") {
				t.Errorf("%+v", x)
			}
		}
		reads := w.Submit(w.Session("assistant"), "read it")
		w.Settle()
		wantState(t, w, reads.ID, session.Completed, "")
		r.Facts.Harnesses = news
		r.Connect()
		w.Until("the updated machine to take it", func() bool { return w.Turn(turn.ID).State == session.RunningModel })
		r.Turn().Finish("done", "")
		w.Settle()
		wantState(t, w, turn.ID, session.Completed, "")
	})
}

// Who watches a session sees how far a turn's workspace has come to its machine, now
// and then and at its end; of another blob, another machine's attempt, or by nobody who
// watches, nothing is told and nothing waits.
func TestStagingIsTold(t *testing.T) {
	inWorld(t, func(w *et.World, r *et.Runner) {
		s := w.Session("coder")
		digest := "sha256:" + strings.Repeat("a", 64)
		if err := w.Store.Update(ctx(), w.Me(), func(tx *store.Tx) error {
			_, err := tx.PutArtifact(policy.Artifact{Digest: digest, Tenant: w.Tenant.ID, Principal: w.Me().Principal(), Kind: "workspace", Size: 1000, CreatedAt: tx.Now})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		live, stop, err := w.Engine.WatchLive(ctx(), w.Me(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		a, err := submit(w, w.Me(), engine.NewTurn{Session: s.ID, MessageID: "m", Prompt: "fix it", WorkspaceDigest: digest})
		if err != nil {
			t.Fatal(err)
		}
		w.Settle()
		h := r.Turn()
		other := w.Join("desktop", "files.read")
		for _, silent := range []func(int){
			w.Engine.Staged(ctx(), r.Caller(), h.ID, "sha256:"+strings.Repeat("b", 64), 1000),
			w.Engine.Staged(ctx(), other.Caller(), h.ID, digest, 1000),
		} {
			silent(1000)
		}
		told := w.Engine.Staged(ctx(), r.Caller(), h.ID, digest, 1000)
		for range 9 {
			told(100) // at once: one may be told at most
		}
		time.Sleep(time.Second)
		told(50)
		told(50)
		var got []int64
		for len(live) > 0 {
			m := <-live
			if m.Text != "" || m.Staging.Turn != a.Turn.ID || m.Staging.Runner != r.ID || m.Staging.Of != 1000 {
				t.Errorf("told %+v", m)
			}
			got = append(got, m.Staging.Sent)
		}
		if !slices.Equal(got, []int64{950, 1000}) {
			t.Errorf("told at %v bytes", got)
		}
		h.Finish("done", "")
		w.Settle()
	})
}
