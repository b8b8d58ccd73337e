package enginetest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/engine"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// Runner is a machine in process: it speaks the runner's side of the contract to
// the engine, works on files in memory, and keeps a journal of each attempt that
// survives its own restarts.
type Runner struct {
	ID    protocol.RunnerID
	Facts *runnerv1.Facts
	// Files by path, as device actions see them.
	Files map[string]string
	// Writes are the effects that it had, by action.
	Writes []string
	// Claims off lets offers lie; Reports off keeps results in the journal; Acks off
	// leaves what was delivered in the mailbox.
	Claims, Reports, Acks bool
	// Renews off lets its leases lapse.
	Renews bool
	// Keyed: its owner holds a second key, and nobody decides.
	Keyed bool
	// Do carries a device action out in place of the runner; nil: by Files.
	Do func(*runnerv1.DeviceWork) *runnerv1.Result

	w       *World
	caller  store.Caller
	epoch   int64
	cursor  int64
	renewed time.Time
	held    []*Held
	Stopped []string // attempts that it was told to stop
	// Offered is the last offer that it got.
	Offered *runnerv1.Offer
	// waiting are offers whose supervisors Nomad has not started yet.
	waiting []*runnerv1.Offer
	Answers []*runnerv1.ToolAnswer
	Fenced  string
}

// Held is one attempt that the runner claimed.
type Held struct {
	ID      protocol.AttemptID
	Fence   protocol.Fence
	Work    *runnerv1.Work
	Terms   *runnerv1.LeaseTerms
	Nonce   string
	Journal []*runnerv1.Record
	// Job is the allocation that its supervisor runs in; empty: the runner's own.
	Job string
	// Short says in renewals that a model call waits for a larger slice.
	Short bool
	acked int64
	lost  bool
}

// Join enrols a runner of the world's person, and connects it.
func (w *World) Join(name string, actions ...string) *Runner {
	w.T.Helper()
	return w.JoinOf(w.Person, name, actions...)
}

// JoinOf is Join for another owner.
func (w *World) JoinOf(owner policy.Principal, name string, actions ...string) *Runner {
	w.T.Helper()
	ctx := context.Background()
	hash := []byte("code of " + name + fmt.Sprint(len(w.Runners)))
	id := protocol.NewID[protocol.RunnerKind](time.Now(), rand.Reader)
	if _, err := w.Engine.CreateJoinCode(ctx, Caller(owner), engine.NewJoinCode{Hash: hash, Name: name}); err != nil {
		w.T.Fatal(err)
	}
	if _, err := w.Engine.EnrollRunner(ctx, engine.Enrolment{CodeHash: hash, Runner: id, PublicKey: []byte(name), Thumbprint: "thumb-" + name}); err != nil {
		w.T.Fatal(err)
	}
	r := w.runner(owner, id)
	r.Facts.Actions = actions
	r.Connect()
	return r
}

// runner is a machine that is not connected yet.
func (w *World) runner(owner policy.Principal, id protocol.RunnerID) *Runner {
	r := &Runner{ID: id, w: w, caller: store.AsRunner(owner.Tenant, id), Files: map[string]string{}, Claims: true, Reports: true, Acks: true, Renews: true,
		Facts: &runnerv1.Facts{Os: "linux", Arch: "amd64", Slots: 2, Boundary: "process", Limits: "cgroup", Adapters: []string{"native"},
			Harnesses: []*runnerv1.Harness{{Name: "native", Version: "0.1.0", Protocol: 1}}}}
	w.Runners = append(w.Runners, r)
	return r
}

// JoinHosted enrols a machine that Nomad runs, whose turns may have allocations of their
// own, and connects it.
func (w *World) JoinHosted(owner policy.Principal, name string) *Runner {
	w.T.Helper()
	id := protocol.NewID[protocol.RunnerKind](time.Now(), rand.Reader)
	if _, err := w.Engine.EnrollWorkload(context.Background(), engine.WorkloadEnrolment{Workload: "agents/bivouac-runner/edge/" + name, Tenant: owner.Tenant,
		Principal: owner.ID.String(), Runner: id, Name: name, PublicKey: []byte(name), Thumbprint: "thumb-" + name}); err != nil {
		w.T.Fatal(err)
	}
	r := w.runner(owner, id)
	r.Facts.Allocations = true
	r.Connect()
	return r
}

// Caller of the runner.
func (r *Runner) Caller() store.Caller { return r.caller }

// Epoch of its connection; zero while it is not connected.
func (r *Runner) Epoch() int64 { return r.epoch }

// lost says that the server is another process: nothing of the link is left.
func (r *Runner) lost() { r.epoch = 0 }

// Connect takes the connection row with everything that the runner holds.
func (r *Runner) Connect() *runnerv1.ConnectResponse {
	r.w.T.Helper()
	req := &runnerv1.ConnectRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(),
		BootNonce: "boot", LastEpoch: r.epoch, Facts: r.Facts}
	for _, h := range r.held {
		req.Held = append(req.Held, &runnerv1.HeldLease{AttemptId: h.ID.String(), Fence: int64(h.Fence), JournalSeq: int64(len(h.Journal))})
	}
	resp, err := r.w.Engine.Connect(context.Background(), r.caller, "http/3", req)
	if err != nil {
		r.w.T.Fatalf("connect: %v", err)
	}
	r.epoch, r.cursor, r.renewed = resp.Epoch, resp.MailboxCursor, time.Now()
	for _, v := range resp.Leases {
		if h := r.Holds(protocol.AttemptID(v.AttemptId)); h != nil {
			h.lost = !v.Alive
		}
	}
	// The open stream is what makes a runner attached.
	if _, err := r.w.Engine.Mail(context.Background(), r.caller, r.epoch, r.cursor, 1); err != nil {
		r.w.T.Fatalf("attach: %v", err)
	}
	return resp
}

// Disconnect ends the transport.
func (r *Runner) Disconnect() {
	r.w.T.Helper()
	if err := r.w.Engine.Disconnect(context.Background(), r.caller, r.epoch); err != nil {
		r.w.T.Fatalf("disconnect: %v", err)
	}
	r.epoch = 0
}

// Holds finds an attempt that the runner claimed and has not finished.
func (r *Runner) Holds(id protocol.AttemptID) *Held {
	i := slices.IndexFunc(r.held, func(h *Held) bool { return h.ID == id })
	if i < 0 {
		return nil
	}
	return r.held[i]
}

// Turn is the one whole turn that it holds.
func (r *Runner) Turn() *Held {
	r.w.T.Helper()
	h := r.Whole()
	if h == nil {
		r.w.T.Fatal("the runner holds no turn")
	}
	return h
}

// Whole is the turn that it holds, or nil.
func (r *Runner) Whole() *Held {
	for _, h := range r.held {
		if h.Work.GetTurn() != nil && !h.lost {
			return h
		}
	}
	return nil
}

// Turns are all whole turns that it holds.
func (r *Runner) Turns() (all []*Held) {
	for _, h := range r.held {
		if h.Work.GetTurn() != nil && !h.lost {
			all = append(all, h)
		}
	}
	return all
}

// Step reads mail, renews and reports, once.
func (r *Runner) Step() bool {
	if r.epoch == 0 {
		return false
	}
	worked := r.mail()
	worked = r.supervise() || worked
	if r.epoch != 0 && r.Renews && time.Since(r.renewed) >= 5*time.Second {
		r.Renew()
	}
	if r.epoch != 0 && r.Reports {
		worked = r.report() || worked
	}
	return worked
}

func (r *Runner) mail() bool {
	ctx := context.Background()
	items, err := r.w.Engine.Mail(ctx, r.caller, r.epoch, r.cursor, 64)
	if err != nil {
		r.gone(err)
		return false
	}
	for _, m := range items {
		r.cursor = m.Seq
		switch k := m.Kind.(type) {
		case *runnerv1.AttachResponse_Offer:
			r.Offered = k.Offer
			switch {
			case !r.Claims:
			case k.Offer.Allocation != "":
				r.waiting = append(r.waiting, k.Offer)
			default:
				r.claim(k.Offer)
			}
		case *runnerv1.AttachResponse_Stop:
			r.Stopped = append(r.Stopped, k.Stop.AttemptId)
			r.waiting = slices.DeleteFunc(r.waiting, func(w *runnerv1.Offer) bool {
				return w.AttemptId == k.Stop.AttemptId && (k.Stop.Allocation == "" || w.Allocation == k.Stop.Allocation)
			})
		case *runnerv1.AttachResponse_ToolAnswer:
			r.Answers = append(r.Answers, k.ToolAnswer)
		case *runnerv1.AttachResponse_Fenced:
			r.Fenced = k.Fenced.Reason
		}
	}
	if len(items) == 0 || !r.Acks {
		return len(items) > 0
	}
	if err := r.w.Engine.Acknowledge(ctx, r.caller, &runnerv1.AcknowledgeRequest{Epoch: r.epoch, Seq: r.cursor}); err != nil {
		r.gone(err)
	}
	return true
}

// gone drops a link whose epoch another one took; everything else is a fault.
func (r *Runner) gone(err error) {
	if protocol.CodeOf(err) != protocol.CodeStaleFence {
		r.w.T.Errorf("runner %s: %v", r.ID, err)
	}
	r.epoch = 0
}

// supervise claims for supervisors that have come, and lets offers go whose time is over.
func (r *Runner) supervise() (worked bool) {
	for _, o := range slices.Clone(r.waiting) {
		runs := r.w.Nomad.Runs(o.Allocation)
		if !runs && time.Now().UnixMicro() < o.DeadlineUs {
			continue
		}
		r.waiting = slices.DeleteFunc(r.waiting, func(w *runnerv1.Offer) bool { return w == o })
		if worked = true; runs {
			r.claim(o)
		}
	}
	return worked
}

func (r *Runner) claim(o *runnerv1.Offer) {
	h := &Held{ID: protocol.AttemptID(o.AttemptId), Nonce: "nonce-" + o.AttemptId}
	resp, err := r.w.Engine.Claim(context.Background(), r.caller, &runnerv1.ClaimRequest{AttemptId: o.AttemptId, Epoch: r.epoch, BootNonce: h.Nonce, Allocation: o.Allocation})
	switch protocol.CodeOf(err) {
	case "":
	case protocol.CodeConflict, protocol.CodeNotFound, protocol.CodeFailedPrecondition, protocol.CodePermissionDenied:
		return // another one has it, or it ended
	default:
		r.w.T.Errorf("claim of %s: %v", o.AttemptId, err)
		return
	}
	h.Job = o.Allocation
	h.Fence, h.Terms, h.Work = protocol.Fence(resp.Terms.Fence), resp.Terms, &runnerv1.Work{}
	if err := proto.Unmarshal(resp.Work, h.Work); err != nil || canonical.Digest(resp.Work) != resp.SpecDigest {
		r.w.T.Errorf("work of %s: %v, digest %s", h.ID, err, resp.SpecDigest)
	}
	r.held = append(r.held, h)
	if d := h.Work.GetDevice(); d != nil && r.Keyed {
		h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{}}})
		h.Append(&runnerv1.Record{Kind: &runnerv1.Record_OwnerAsked{OwnerAsked: &runnerv1.OwnerAsked{
			Digest: secondkey.Digest(h.ID, h.Fence, r.ID, d), WaitMs: d.MaxOwnerWaitMs}}})
	} else if d != nil {
		h.Append(&runnerv1.Record{Kind: &runnerv1.Record_EffectIntent{EffectIntent: &runnerv1.EffectIntent{ActionId: d.ActionId, ArgumentsDigest: d.ArgumentsDigest}}})
		h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: r.do(d)}})
	}
}

// Append journals a record with the next sequence.
func (h *Held) Append(rec *runnerv1.Record) {
	rec.Seq, rec.AtUs = int64(len(h.Journal))+1, time.Now().UnixMicro()
	h.Journal = append(h.Journal, rec)
}

// Renew renews every lease; one that is absent from the answer is lost.
func (r *Runner) Renew() *runnerv1.RenewResponse {
	r.w.T.Helper()
	req := &runnerv1.RenewRequest{Epoch: r.epoch}
	for _, h := range r.held {
		req.Leases = append(req.Leases, &runnerv1.HeldLease{AttemptId: h.ID.String(), Fence: int64(h.Fence), Short: h.Short})
	}
	resp, err := r.w.Engine.Renew(context.Background(), r.caller, req)
	if err != nil {
		r.gone(err)
		return nil
	}
	r.renewed = time.Now()
	for _, h := range r.held {
		i := slices.IndexFunc(resp.Leases, func(v *runnerv1.LeaseVerdict) bool { return v.AttemptId == h.ID.String() })
		if h.lost = i < 0; !h.lost {
			h.Terms = resp.Leases[i].Terms
		}
	}
	return resp
}

// report sends what the journal has, and forgets attempts whose result is in.
func (r *Runner) report() (worked bool) {
	for _, h := range slices.Clone(r.held) {
		if int64(len(h.Journal)) == h.acked {
			continue
		}
		resp, err := r.w.Engine.Report(context.Background(), r.caller, &runnerv1.ReportRequest{AttemptId: h.ID.String(),
			Fence: int64(h.Fence), Epoch: r.epoch, Records: h.Journal[h.acked:]})
		if err != nil {
			r.w.T.Errorf("report of %s: %v", h.ID, err)
			continue
		}
		worked = true
		h.acked = resp.AcceptedSeq
		if h.Journal[len(h.Journal)-1].GetResult() != nil && h.acked == int64(len(h.Journal)) {
			r.held = slices.DeleteFunc(r.held, func(o *Held) bool { return o == h })
			if h.Job != "" {
				r.w.Nomad.End(h.Job, "its task ended with 0")
			}
		}
	}
	return worked
}

// do carries one device action out, as the contract of edge/device says.
func (r *Runner) do(d *runnerv1.DeviceWork) *runnerv1.Result {
	if r.Do != nil {
		return r.Do(d)
	}
	var args struct{ Path, Content string }
	if err := json.Unmarshal([]byte(d.Arguments), &args); err != nil {
		return &runnerv1.Result{Status: "failed", Code: string(protocol.CodeInvalidArgument), Message: err.Error()}
	}
	content, exists := r.Files[args.Path]
	digest := ""
	if exists {
		digest = canonical.Digest([]byte(content))
	}
	output := map[string]any{}
	switch d.Action {
	case "files.read":
		if !exists {
			return &runnerv1.Result{Status: "failed", Code: string(protocol.CodeNotFound), Message: "no such file"}
		}
		output["content"], output["digest"] = content, digest
	case "files.digest":
		output["exists"], output["digest"] = exists, digest
	case "files.write":
		if digest != d.PreImageDigest {
			return &runnerv1.Result{Status: "failed", Code: string(protocol.CodeConflict), Message: "the file is not the one that was approved"}
		}
		r.Files[args.Path] = args.Content
		r.Writes = append(r.Writes, d.ActionId)
		output["digest"] = canonical.Digest([]byte(args.Content))
	default:
		return &runnerv1.Result{Status: "denied", Code: string(protocol.CodePolicyDenied), Message: "not an action here"}
	}
	b, err := canonical.Marshal(output)
	if err != nil {
		r.w.T.Error(err)
	}
	return &runnerv1.Result{Status: "succeeded", Output: string(b)}
}

// Begin journals that the work began.
func (h *Held) Begin() {
	h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{Boundary: "process", Limits: "cgroup"}}})
}

// Event journals what the worker's loop did.
func (h *Held) Event(e *runtimev1.LoopEvent) {
	b, err := proto.Marshal(e)
	if err != nil {
		panic(err) // a message made here always encodes
	}
	h.Append(&runnerv1.Record{Kind: &runnerv1.Record_LoopEvent{LoopEvent: b}})
}

// Ask journals the wish for a tool of the engine.
func (h *Held) Ask(c Call) {
	h.Append(&runnerv1.Record{Kind: &runnerv1.Record_ToolRequested{ToolRequested: &runnerv1.ToolRequested{
		CallId: c.ID, Alias: c.Alias, Arguments: c.Arguments}}})
}

// AskParked is Ask of a supervisor that can end the attempt while a person decides.
func (h *Held) AskParked(c Call) {
	h.Ask(c)
	h.Journal[len(h.Journal)-1].GetToolRequested().CanPark = true
}

// Park journals the result of an attempt that ends because a person is asked.
func (h *Held) Park(s *runtimev1.LoopState, patch string) {
	b, err := proto.Marshal(s)
	if err != nil {
		panic(err)
	}
	h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{
		Status: protocol.ResultParked, Code: string(protocol.CodeApprovalRequired), State: b, PatchDigest: patch}}})
}

// Checkpoint journals a state and the patch that belongs to it.
func (h *Held) Checkpoint(s *runtimev1.LoopState, patch string) {
	b, err := proto.Marshal(s)
	if err != nil {
		panic(err)
	}
	h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Checkpoint{Checkpoint: &runnerv1.Checkpoint{State: b, PatchDigest: patch}}})
}

// Finish journals the result of a completed turn.
func (h *Held) Finish(text, patch string) {
	b, err := proto.Marshal(&runtimev1.Outcome{Kind: runtimev1.OutcomeKind_OUTCOME_KIND_COMPLETED, Text: text,
		Usage: &runtimev1.Usage{InputTokens: 5, OutputTokens: 5, CostMicroUsd: 5}})
	if err != nil {
		panic(err)
	}
	h.Append(&runnerv1.Record{Kind: &runnerv1.Record_Result{Result: &runnerv1.Result{Status: "succeeded", Outcome: b, PatchDigest: patch}}})
}

// Spec that the attempt was given.
func (h *Held) Spec() *runtimev1.Spec {
	s := &runtimev1.Spec{}
	if err := proto.Unmarshal(h.Work.GetTurn().GetSpec(), s); err != nil {
		panic(err)
	}
	return s
}

// Upload stores a patch for the attempt's turn, as a blob that was taken.
func (r *Runner) Upload(h *Held, content string) string {
	r.w.T.Helper()
	digest := canonical.Digest([]byte(content))
	if err := r.w.Engine.MayPutBlob(context.Background(), r.caller, h.ID, h.Fence); err != nil {
		r.w.T.Fatal(err)
	}
	if err := r.w.Engine.BlobStored(context.Background(), r.caller, h.ID, h.Fence, digest, int64(len(content))); err != nil {
		r.w.T.Fatal(err)
	}
	return digest
}
