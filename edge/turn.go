package edge

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/lease"
	"bivouac/edge/link"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
	"bivouac/edge/supervise/protocol/supervisev1"
	"bivouac/edge/supervise/protocol/supervisev1/supervisev1connect"
)

// turn is a turn attempt and its supervisor. The supervisor owns the work and
// its journal; the daemon brings work and terms in, and records out.
type turn struct {
	*attempt
	dir        state.Attempt
	begin      *supervisev1.BeginRequest
	supervisor supervisev1connect.SuperviseServiceClient
	terms      atomic.Pointer[runnerv1.LeaseTerms]
	// recovered turns were claimed by an earlier daemon: a supervisor may have
	// left a journal to be read.
	recovered bool
	// job in which another scheduler started the supervisor; empty: this machine does.
	job string
	// quiet is set when an ordered end has left no process, and when.
	quiet   atomic.Bool
	quietAt atomic.Int64
	starts  int             // of the supervisor, by the turn's op
	put     map[string]bool // blobs that the server has, by the turn's op
}

// turns finds turns by attempt.
type turns struct{ byAttempt[*turn] }

// stopping counts turns that were cut and may still have a process.
func (t *turns) stopping() (n int) {
	for _, one := range t.all() {
		if one.cut.Load() != nil && !one.quiet.Load() {
			n++
		}
	}
	return n
}

// Names of a turn's ops.
func turnOp(id protocol.AttemptID) string  { return "turn " + id.String() }
func liveOp(id protocol.AttemptID) string  { return "live " + id.String() }
func stopOp(id protocol.AttemptID) string  { return "stop " + id.String() }
func renewOp(id protocol.AttemptID) string { return "renew " + id.String() }

// startTurn runs a claimed turn to its end.
func (d *Daemon) startTurn(a *attempt, dir state.Attempt, begin *supervisev1.BeginRequest, recovered bool) {
	t := &turn{attempt: a, dir: dir, begin: begin, recovered: recovered, supervisor: supervisorOf(d.cfg.Supervisors, dir), put: map[string]bool{}}
	if of, ok := dir.Allocation(); ok {
		t.job = of.Job
	}
	t.terms.Store(begin.GetTerms())
	a.holds.Store(dir.Sandbox().Freezer != "")
	d.turns.put(t.id, t)
	d.ops.Start(turnOp(a.id), func(ctx context.Context) { d.runTurn(ctx, t) })
}

// runTurn repeats stepTurn until the server has the result.
func (d *Daemon) runTurn(ctx context.Context, t *turn) {
	backoff := link.Backoff{Base: d.cfg.BackoffBase, Max: 5 * time.Second}
	for ctx.Err() == nil {
		progress := t.seq.Load()
		err := d.stepTurn(ctx, t)
		if err == nil {
			d.finishTurn(ctx, t)
			return
		}
		if ctx.Err() != nil {
			break
		}
		d.problems.note("turn", err)
		d.log.WarnContext(ctx, "a turn is taken up again", "attempt", t.id, "error", err)
		if t.seq.Load() > progress {
			backoff.Reset()
		}
		op.Sleep(ctx, backoff.Next())
	}
	if errors.Is(context.Cause(ctx), errAbandoned) {
		d.abandoned(d.ops.Context(), t)
	}
}

// errAbandoned ends a turn whose supervisor was stopped and gave no result.
var errAbandoned = protocol.Errorf(protocol.CodeCancelled, "the turn was stopped and left no result")

// abandoned ends such a turn: one that was lost needs no word of ours, the server
// gives it to another; any other gets its result from here.
func (d *Daemon) abandoned(ctx context.Context, t *turn) {
	if !t.lost.Load() {
		if err := d.answerFor(ctx, t, cancelledResult(t.cut.Load())); err != nil {
			return // the daemon ends; the next one takes it up
		}
	}
	d.finishTurn(ctx, t)
}

// startIn bounds the wait for a supervisor that was started. It takes some tens of
// milliseconds as a rule, so it is asked often at first, and then ever more seldom.
const (
	startIn    = 10 * time.Second
	helloEvery = 5 * time.Millisecond
)

// maxStarts of one attempt's supervisor before the daemon answers for it.
const maxStarts = 4

// stepTurn goes as far as it can: stage, start, begin, follow. It returns nil
// when nothing is left to do but to clean up.
func (d *Daemon) stepTurn(ctx context.Context, t *turn) error {
	hello, err := d.reach(ctx, t)
	if err != nil && t.lost.Load() {
		return nil // no supervisor, and nothing that it could add
	}
	if err != nil {
		if final := finalFor(t, err); final != nil {
			return d.answerFor(ctx, t, final)
		}
		return err
	}
	switch {
	case !hello.GetBegun() && t.cut.Load() != nil:
		return d.answerFor(ctx, t, cancelledResult(t.cut.Load()))
	case !hello.GetBegun():
		begin := proto.CloneOf(t.begin)
		begin.Terms, begin.BrokerAddress = t.remaining(t.terms.Load()), d.broker()
		if _, err := t.supervisor.Begin(ctx, begin); err != nil {
			err = protocol.FromConnect(err)
			if transient(err) {
				return err
			}
			return d.answerFor(ctx, t, failedResult(err))
		}
	}
	if t.cut.Load() != nil {
		d.endTurn(t.attempt, t.cut.Load().Message)
	} else {
		d.ops.Start(liveOp(t.id), func(ctx context.Context) { d.passLive(ctx, t) })
	}
	return d.follow(ctx, t, hello.GetAckedSeq())
}

// reach returns a supervisor that answers, staged and started when there is
// none yet. A turn that was cut before it ever began is not started. Where another
// scheduler started the supervisor and that has ended, one is started that has its
// records alone: the attempt was interrupted.
func (d *Daemon) reach(ctx context.Context, t *turn) (*supervisev1.HelloResponse, error) {
	if hello, err := d.hello(ctx, t); err == nil {
		return hello, d.stageFor(ctx, t, hello)
	}
	if cut := t.cut.Load(); cut != nil && (t.lost.Load() || t.starts == 0 && !t.recovered && t.job == "") {
		return nil, cut
	}
	if t.job != "" {
		if hello, err := d.outlive(ctx, t); err != nil || hello != nil {
			return hello, err
		}
	} else if err := d.stage(ctx, t); err != nil {
		return nil, err
	}
	if t.starts >= maxStarts {
		return nil, protocol.Errorf(protocol.CodeInternal, "the supervisor of attempt %s ended %d times", t.id, t.starts)
	}
	t.starts++
	if err := d.cfg.Supervisors.Start(ctx, t.dir); err != nil {
		return nil, err
	}
	for began := t.lease.Now(); ; {
		hello, err := d.hello(ctx, t)
		if err == nil {
			return hello, nil
		}
		took := t.lease.Now() - began
		if took > startIn || !op.Sleep(ctx, max(helloEvery, took/8)) {
			return nil, protocol.Errorf(protocol.CodeUnavailable, "the supervisor of attempt %s does not answer: %w; its log is in %s", t.id, err, t.dir.Path())
		}
	}
}

// stageFor brings the blobs of the work to who has not begun and was not started here.
func (d *Daemon) stageFor(ctx context.Context, t *turn, hello *supervisev1.HelloResponse) error {
	if t.job == "" || hello.GetBegun() || t.cut.Load() != nil {
		return nil
	}
	return d.stage(ctx, t)
}

// outlive waits for a supervisor of another scheduler to answer or to end; nil when it
// has ended. One that lives and answers nothing is ended.
func (d *Daemon) outlive(ctx context.Context, t *turn) (*supervisev1.HelloResponse, error) {
	for deadline := t.lease.Now() + deafFor; t.lease.Now() < deadline; {
		mark, _, err := t.dir.Mark()
		if err != nil || !t.dir.Runs(mark) {
			break
		}
		if hello, err := d.hello(ctx, t); err == nil {
			return hello, nil
		}
		if !op.Sleep(ctx, awaitEvery) {
			return nil, context.Cause(ctx)
		}
	}
	return nil, d.cfg.Supervisors.Kill(ctx, t.dir)
}

// hello checks that who answers is the supervisor of this claim. INV-14.
func (d *Daemon) hello(ctx context.Context, t *turn) (*supervisev1.HelloResponse, error) {
	hello, err := call(ctx, t.supervisor.Hello, &supervisev1.HelloRequest{})
	if err != nil {
		return nil, err
	}
	nonce, err := t.dir.BootNonce()
	if err != nil {
		return nil, err
	}
	if hello.GetAttemptId() != t.id.String() || hello.GetBootNonce() != nonce {
		return nil, protocol.Errorf(protocol.CodeConflict, "another supervisor answers at %s", t.dir.Socket())
	}
	t.seq.Store(max(t.seq.Load(), hello.GetJournalSeq()))
	return hello, nil
}

// endTurn orders the end of all processes of a turn, by its supervisor, or by
// force when that does not answer.
func (d *Daemon) endTurn(a *attempt, reason string) {
	t := d.turns.get(a.id)
	if t == nil {
		return
	}
	d.ops.Start(stopOp(a.id), func(ctx context.Context) {
		limit, cancel := context.WithTimeout(ctx, stopTimeout)
		defer cancel()
		if _, err := t.supervisor.Stop(limit, &supervisev1.StopRequest{Reason: reason}); err != nil {
			d.log.WarnContext(ctx, "a supervisor did not stop its work and is killed", "attempt", t.id, "error", err)
			if err := d.cfg.Supervisors.Kill(ctx, t.dir); err != nil {
				d.problems.note("stop", err)
				return
			}
		}
		t.quietAt.Store(int64(d.cfg.Elapsed()))
		t.quiet.Store(true)
	})
}

// resultIn is how long a stopped supervisor may take to bring its last records.
const resultIn = 3 * time.Second

// watchCut sees a stopped turn to its end. While the link is up its last records
// go to the server, then it is abandoned; when retention has passed its slot is
// free, though its records wait for the link.
func (d *Daemon) watchCut(a *attempt) {
	t := d.turns.get(a.id)
	if t == nil {
		return
	}
	if t.quiet.Load() && d.line.get() != nil && d.cfg.Elapsed()-time.Duration(t.quietAt.Load()) > resultIn {
		d.ops.Stop(turnOp(a.id), errAbandoned)
	}
	if !t.quiet.Load() {
		d.endTurn(a, a.cut.Load().Message) // again, when the first order failed
	}
	if a.lease.Retention() <= 0 && a.freed.CompareAndSwap(false, true) {
		d.log.Warn("an attempt was cut off for longer than its retention", "attempt", a.id)
	}
}

// pass brings new terms to the supervisor.
func (d *Daemon) pass(a *attempt, terms *runnerv1.LeaseTerms) {
	t := d.turns.get(a.id)
	if t == nil || a.cut.Load() != nil {
		return
	}
	t.terms.Store(terms)
	d.ops.Start(renewOp(a.id), func(ctx context.Context) {
		limit, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if _, err := t.supervisor.Renew(limit, &supervisev1.RenewRequest{Terms: t.remaining(t.terms.Load())}); err != nil {
			d.log.DebugContext(ctx, "new terms did not reach a supervisor", "attempt", t.id, "error", err)
			if err = protocol.FromConnect(err); protocol.CodeOf(err) == protocol.CodeLeaseExpired {
				d.cutOff(a, protocol.Errorf(protocol.CodeLeaseExpired, "the sandboxes of attempt %s were ended when its lease lapsed: %w", a.id, err))
			}
		}
	})
}

// answer brings the server's answer of a tool to the supervisor; done is called
// when it is there or nobody needs it. It reports whether done will be called.
func (d *Daemon) answer(m *runnerv1.ToolAnswer, done func()) bool {
	t := d.turns.get(protocol.AttemptID(m.GetAttemptId()))
	if t == nil {
		return false
	}
	// The same answer, sent again while the first is on its way, is dealt with by that.
	return d.ops.Start("answer "+t.id.String()+" "+m.GetCallId(), func(ctx context.Context) {
		backoff := link.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second}
		for !t.ended.Load() && t.cut.Load() == nil {
			_, err := call(ctx, t.supervisor.Answer, &supervisev1.AnswerRequest{CallId: m.GetCallId(), Result: m.GetResult(), Park: m.GetPark()})
			if err == nil || !transient(err) {
				break
			}
			if !op.Sleep(ctx, backoff.Next()) {
				return // the server sends it again
			}
		}
		done()
	})
}

// finishTurn waits until the supervisor has cleaned up and ended, and removes
// the attempt from this machine (INV-18).
func (d *Daemon) finishTurn(ctx context.Context, t *turn) {
	d.ops.Stop(liveOp(t.id), context.Canceled)
	deadline := t.lease.Now() + stopTimeout
	for t.lease.Now() < deadline {
		d.cfg.Supervisors.Reap()
		if _, err := d.hello(ctx, t); err != nil {
			break
		}
		if !op.Sleep(ctx, 20*time.Millisecond) {
			return // the next start finds the directory
		}
	}
	// The task of an allocation ends by itself, or it would have failed for Nomad.
	for t.lease.Now() < deadline {
		if mark, ok, err := t.dir.Mark(); err != nil || !ok || !t.dir.Runs(mark) {
			break
		}
		if !op.Sleep(ctx, 20*time.Millisecond) {
			return
		}
	}
	if err := d.cfg.Supervisors.Kill(ctx, t.dir); err != nil {
		d.log.WarnContext(ctx, "a finished supervisor cannot be ended", "attempt", t.id, "error", err)
	}
	if err := t.dir.Remove(); err != nil {
		d.problems.note("cleanup", err)
		d.log.ErrorContext(ctx, "the directory of a finished attempt is left", "attempt", t.id, "error", err)
	}
	t.quiet.Store(true)
	d.turns.remove(t.id)
	d.table.remove(t.id)
	d.problems.note("turn", nil)
}

// recoverTurns takes up turns of an earlier daemon: their supervisors may still
// run, may have finished, or died with the machine.
func (d *Daemon) recoverTurns(ctx context.Context) error {
	dirs, err := d.cfg.State.Attempts()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		begin, ok, err := dir.Claim()
		switch {
		case err != nil:
			return protocol.Errorf(protocol.CodeDataLoss, "the claim of attempt %s cannot be read: %w; move %s away", dir.ID, err, dir.Path())
		case !ok && d.cfg.Supervisors != nil && awaits(dir):
			d.recoverAwaited(ctx, dir)
			continue
		case !ok:
			continue // claimed again under the same nonce when it is offered again
		case d.cfg.Supervisors == nil:
			d.log.WarnContext(ctx, "an attempt is left that this daemon cannot supervise", "attempt", dir.ID)
			continue
		}
		a := &attempt{id: dir.ID, kind: protocol.KindTurn, fence: protocol.Fence(begin.GetTerms().GetFence()), lease: lease.NewLease(d.cfg.Elapsed)}
		d.table.add(a)
		d.startTurn(a, dir, begin, true)
	}
	return nil
}

// awaits reports a directory that was made for the supervisor of another scheduler.
func awaits(dir state.Attempt) bool {
	_, ok := dir.Allocation()
	return ok
}
