package supervise

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/relay"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/sized"
	"bivouac/edge/workspace"
)

// attempt is the one piece of work of a supervisor, from Begin to its result.
type attempt struct {
	*supervisor
	turn   *runnerv1.TurnWork
	spec   *runtimev1.Spec
	limits limits
	relay  *relay.Relay
	hangUp func() error // of the broker's connection
	cancel context.CancelCauseFunc
	ending <-chan struct{} // closed when it is asked to end

	repo  *workspace.Repo
	group sandbox.Group
	hold  *hold
	// doors to registries of packages, for commands in sandbox B.
	doors []door
	open  sync.WaitGroup // what serves them
	// volume that holds workspace and home; nil where they are watched.
	volume *sized.Volume
	// trace is the turn's trace context; empty: it has none.
	trace string
	// finished is fired when the worker has said how its loop ended.
	finished mark
	// inflight are requests of the worker.
	inflight sync.WaitGroup
	// execs keeps tool calls and checkpoints apart.
	execs sync.Mutex

	progress sync.Mutex     // guards the fields below
	report   sandbox.Report // what this machine enforces; empty until it was looked at
	left     bool           // no request is admitted any more
	busy     int
	active   time.Duration // when the worker last asked for something
	ended    *runtimev1.FinishRequest
	parked   *runtimev1.LoopState // where another attempt goes on
	broken   error                // the first failure of this machine in a tool call
	// dirty: files changed, or the server answered a tool, since the last checkpoint.
	dirty bool
}

// newAttempt reads the work. It dials nothing.
func newAttempt(s *supervisor, w *handover) (*attempt, error) {
	a := &attempt{supervisor: s, turn: w.turn, trace: traceContext(w.trace), spec: &runtimev1.Spec{}, hold: newHold(), finished: newMark(), active: s.lease.Now()}
	if err := proto.Unmarshal(w.turn.GetSpec(), a.spec); err != nil {
		return nil, protocol.Errorf(protocol.CodeIncompatible, "the turn's spec cannot be read: %w; upgrade bivouac-edge", err)
	}
	broker, hangUp, err := s.cfg.Dial(w.broker)
	if err != nil {
		return nil, err
	}
	a.hangUp = hangUp
	a.relay = relay.New(relay.Config{Broker: broker, Lease: s.lease, Model: a.spec.GetModel(), LiveFunc: s.live.send, ShortFunc: s.short.set})
	a.relay.Refresh(w.terms.GetCapability(), sliceOf(w.terms))
	budget := s.budget(w, a.spec)
	s.deadline = s.lease.Now() + budget
	a.limits = s.cfg.limits(w.turn.GetLimits(), budget)
	return a, nil
}

// slack is what staging and the patch may take beside the turn's wall time.
const slack = 5 * time.Minute

// budget is how long the attempt may take. The deadline of the work is by the
// server's clock; one that is past already says that this machine's clock is
// wrong, not that the server gave out dead work.
func (s *supervisor) budget(w *handover, spec *runtimev1.Spec) time.Duration {
	budget := millis(spec.GetLimits().GetMaxWallMs()) + slack
	if left := time.Until(w.until); !w.until.IsZero() && left > 0 {
		budget = min(budget, left)
	}
	return budget
}

// end ends the attempt with a cause; the first one stays.
func (a *attempt) end(cause error) {
	a.relay.Close(cause)
	a.cancel(cause)
}

// run does the work and returns the attempt's result. When it returns no process
// of the attempt is left.
func (a *attempt) run(ctx context.Context) *runnerv1.Result {
	err := a.look(ctx)
	if err == nil {
		err = a.makeRoom(ctx)
	}
	if err == nil {
		err = a.work(ctx)
	}
	a.relay.Close(errOver)
	a.closeDoors()
	if a.hangUp != nil {
		err = errors.Join(err, a.hangUp())
	}
	if a.group != nil {
		if cerr := a.move(context.WithoutCancel(ctx), sandbox.StateClosed, "the attempt is over"); cerr != nil {
			a.cfg.Log.Error("a sandbox group could not be removed; bivouac-edge sweeps it at its next start", "error", cerr)
		}
	}
	return a.result(ctx, err)
}

// work starts the worker in sandbox A and serves it until it is gone. All ways
// out pass through Kill.
func (a *attempt) work(ctx context.Context) error {
	if err := a.permit(ctx); err != nil {
		return err
	}
	if err := a.enter(ctx); err != nil {
		return err
	}
	return a.attend(ctx)
}

// begin makes the workspace, and says that the work has started: nothing that the
// worker asks for is done before. Who is killed in here leaves nothing that was begun.
func (a *attempt) begin(ctx context.Context) error {
	if err := a.prepare(ctx); err != nil {
		return err
	}
	if err := a.permit(ctx); err != nil {
		return err
	}
	started := &runnerv1.Started{Boundary: a.report.Boundary, Limits: a.report.Limits, Narrowed: a.cfg.narrowed(a.turn.GetLimits())}
	if _, err := a.records.append(&runnerv1.Record{Kind: &runnerv1.Record_Started{Started: started}}, true); err != nil {
		return err
	}
	fault.Here(fault.SuperviseBegun)
	return nil
}

// look finds what this machine enforces, and refuses work that asks for more (INV-11).
func (a *attempt) look(ctx context.Context) error {
	report := a.cfg.Backend.Probe(ctx)
	switch {
	case report.Boundary == "":
		return protocol.Errorf(protocol.CodeFailedPrecondition, "this machine has no usable sandbox: %s", report.Problem)
	case a.turn.GetTrust() != protocol.TrustTrusted && report.Limits != protocol.LimitsCgroup:
		return protocol.Errorf(protocol.CodePolicyDenied,
			"untrusted code needs control groups, and this machine limits by %q only: `%s` shows why", report.Limits, a.cfg.StatusCommand)
	}
	a.progress.Lock()
	defer a.progress.Unlock()
	a.report = report
	return nil
}

// enter makes the group of the attempt.
func (a *attempt) enter(ctx context.Context) (err error) {
	if a.group, err = a.cfg.Backend.Group(ctx, a.cfg.Attempt.String(), a.limits.attempt); err != nil {
		return err
	}
	return a.give(ctx, a.group)
}

// outcome that the worker reported, or nil.
func (a *attempt) outcome() *runtimev1.FinishRequest {
	a.progress.Lock()
	defer a.progress.Unlock()
	return a.ended
}

// brokenBy is what kept this machine from running a tool call, or nil.
func (a *attempt) brokenBy() error {
	a.progress.Lock()
	defer a.progress.Unlock()
	return a.broken
}

// breaks notes a failure of this machine. The worker gets it as an error that ends
// the attempt, and the result says what it was.
func (a *attempt) breaks(err error) error {
	a.progress.Lock()
	defer a.progress.Unlock()
	if a.broken == nil {
		a.broken = err
	}
	return err
}

// arrive admits a request of the worker, until leave.
func (a *attempt) arrive() bool {
	a.progress.Lock()
	defer a.progress.Unlock()
	if a.left {
		return false
	}
	a.busy++
	a.active = a.lease.Now()
	a.inflight.Add(1)
	return true
}

func (a *attempt) depart() {
	a.progress.Lock()
	defer a.progress.Unlock()
	a.busy--
	a.active = a.lease.Now()
	a.inflight.Done()
}

// leave admits no request any more and waits for those that are inside: after it
// nothing touches the workspace.
func (a *attempt) leave() {
	a.progress.Lock()
	a.left = true
	a.progress.Unlock()
	a.inflight.Wait()
}

// idle is how long the worker has asked for nothing.
func (a *attempt) idle(now time.Duration) time.Duration {
	a.progress.Lock()
	defer a.progress.Unlock()
	if a.busy > 0 {
		return 0
	}
	return now - a.active
}

// result says how the attempt ended. Exactly one cause explains it.
func (a *attempt) result(ctx context.Context, err error) *runnerv1.Result {
	if f := a.outcome(); f != nil {
		return a.finishedResult(context.WithoutCancel(ctx), f)
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errParked):
		return a.parkedResult(context.WithoutCancel(ctx))
	case a.stopped.fired():
		return &runnerv1.Result{Status: protocol.ResultCancelled, Code: string(protocol.CodeCancelled), Message: a.stopReason()}
	case errors.Is(cause, errHandedOver):
		return a.interruptedResult(errHandedOver)
	case errors.Is(cause, errDeadline):
		return &runnerv1.Result{Status: protocol.ResultFailed, Code: string(protocol.CodeDeadlineExceeded), Message: errDeadline.Message}
	case errors.Is(cause, errStalled):
		return &runnerv1.Result{Status: protocol.ResultFailed, Code: "worker_stalled", Message: errStalled.Message}
	}
	if broken := a.brokenBy(); broken != nil && ctx.Err() == nil {
		err = broken // the worker went because of it
	}
	var coded *protocol.Error
	switch {
	case errors.As(err, &coded):
		return &runnerv1.Result{Status: protocol.ResultFailed, Code: string(coded.Code), Message: coded.Message}
	case err != nil && !errors.Is(err, errWorkerGone) && ctx.Err() == nil:
		a.cfg.Log.Error("the attempt failed inside", "error", err)
		return &runnerv1.Result{Status: protocol.ResultFailed, Code: string(protocol.CodeInternal), Message: "The runner failed inside; its log says why."}
	}
	return &runnerv1.Result{Status: protocol.ResultFailed, Code: protocol.ResultInterrupted, Message: "The worker ended before the turn had finished."}
}

func (s *supervisor) stopReason() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopWhy
}
