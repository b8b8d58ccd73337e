package edge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/legible"
	"bivouac/edge/link"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
	"bivouac/edge/supervise/protocol/supervisev1"
)

// awaited is a turn whose supervisor another scheduler starts, as the task of a job.
// This machine claims it when that has taken its directory: until then it holds no
// lease, and a slot so that the turn finds it free.
type awaited struct {
	id    protocol.AttemptID
	offer *runnerv1.Offer
	dir   state.Attempt
	until time.Duration // by elapsed time: who comes later is not waited for
	dead  time.Duration // since when its supervisor does not answer; zero: it does
	look  op.Bell       // something changed that a look may find
	// over: nothing is left here of it, and the server is to be told, unless told is nil.
	over atomic.Bool
	told *runnerv1.DeclineRequest
	// unwanted is the server's word that ended it.
	unwanted atomic.Pointer[protocol.Error]
}

// Times of an awaited turn.
const (
	// awaitEvery is how often it is looked at without a word that something changed.
	awaitEvery = 200 * time.Millisecond
	// Bounds of the wait, whatever the deadline of the offer and this machine's clock.
	minAwait, maxAwait = time.Minute, 24 * time.Hour
	// deafFor is how long a supervisor that lives may answer nothing.
	deafFor = 30 * time.Second
)

// waiting finds awaited turns by attempt.
type waiting struct{ byAttempt[*awaited] }

// end removes w, and not what is waited for in its place.
func (a *waiting) end(w *awaited) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.by[w.id] == w {
		delete(a.by, w.id)
	}
}

func awaitOp(id protocol.AttemptID) string { return "await " + id.String() }

// await makes the directory of an offered turn and waits for who takes it, beside the
// other work. The offer is on the disk when await returns: a next daemon waits on.
func (d *Daemon) await(ctx context.Context, c *connection, id protocol.AttemptID, o *runnerv1.Offer) error {
	if of, _, err := protocol.ParseAllocationJob(o.GetAllocation()); err != nil || of != id {
		return d.decline(ctx, c, o, &runnerv1.DeclineRequest{Reason: fmt.Sprintf("the offer names the allocation %.80q, which is not one of this attempt", o.GetAllocation())})
	}
	dir := d.cfg.State.Attempt(id)
	have, ok := dir.Allocation()
	if other := dir.Exists() && (!ok || have.Job != o.GetAllocation()); other || d.awaits(id) {
		if err := d.forgetAwaited(ctx, id); err != nil || d.table.get(id) != nil {
			return err
		}
	}
	raw, err := proto.Marshal(o)
	if err != nil {
		return err
	}
	if !dir.Exists() {
		d.log.InfoContext(ctx, "a turn waits for its allocation", "attempt", id, "job", o.GetAllocation())
	}
	if err := dir.Expect(o.GetAllocation(), raw); err != nil {
		return err
	}
	return d.startAwait(ctx, id, o, dir)
}

var errAwaitedAnew = protocol.Errorf(protocol.CodeConflict, "the turn was offered in another way")

// forgetAwaited ends what an attempt waited for that is offered in another way now, and
// what was to be told of it. It returns when nothing is left of it, or the turn was
// claimed meanwhile.
func (d *Daemon) forgetAwaited(ctx context.Context, id protocol.AttemptID) error {
	d.ops.Stop(awaitOp(id), errAwaitedAnew)
	for d.ops.Running(awaitOp(id)) {
		if !op.Sleep(ctx, 5*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	d.awaiting.remove(id)
	if d.table.get(id) != nil {
		return nil
	}
	return d.discard(ctx, d.cfg.State.Attempt(id))
}

// later reports that an offer was made after another one of its attempt. One without an
// allocation has no number: the order of deliveries is all that is known.
func later(o, before *runnerv1.Offer) bool {
	_, n, err := protocol.ParseAllocationJob(o.GetAllocation())
	_, had, errBefore := protocol.ParseAllocationJob(before.GetAllocation())
	return err != nil || errBefore != nil || n > had
}

// awaits reports what is waited for, or is over and not told yet.
func (d *Daemon) awaits(id protocol.AttemptID) bool {
	return d.awaiting.get(id) != nil || d.ops.Running(awaitOp(id))
}

// startAwait waits for the supervisor of a directory. It is refused where something is
// waited for already, and by a daemon that ends: the next one waits on.
func (d *Daemon) startAwait(ctx context.Context, id protocol.AttemptID, o *runnerv1.Offer, dir state.Attempt) error {
	wait := max(minAwait, min(maxAwait, time.UnixMicro(o.GetDeadlineUs()).Sub(d.cfg.State.Now())))
	w := &awaited{id: id, offer: o, dir: dir, until: d.cfg.Elapsed() + wait, look: op.NewBell()}
	d.awaiting.put(id, w)
	d.watchAwaited(dir)
	if !d.ops.Start(awaitOp(id), func(ctx context.Context) { d.runAwait(ctx, w) }) {
		d.awaiting.end(w)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return protocol.Errorf(protocol.CodeUnavailable, "attempt %s is waited for already", id)
	}
	return nil
}

// runAwait repeats stepAwait until the turn is claimed or not wanted any more.
func (d *Daemon) runAwait(ctx context.Context, w *awaited) {
	backoff := link.Backoff{Base: d.cfg.BackoffBase, Max: 5 * time.Second}
	for ctx.Err() == nil {
		over, err := d.stepAwait(ctx, w)
		switch {
		case over:
			d.awaiting.end(w)
			d.problems.note("allocation", nil)
			return
		case err == nil:
			backoff.Reset()
			w.look.Wait(ctx, awaitEvery)
		case ctx.Err() == nil:
			d.problems.note("allocation", err)
			d.log.WarnContext(ctx, "a turn that waits for its allocation is looked at again", "attempt", w.id, "error", err)
			op.Sleep(ctx, backoff.Next())
		}
	}
}

// stepAwait looks once. over: nothing is to be waited for any more.
func (d *Daemon) stepAwait(ctx context.Context, w *awaited) (over bool, err error) {
	if w.over.Load() {
		return d.tell(ctx, w)
	}
	if w.unwanted.Load() != nil {
		return d.giveUp(ctx, w, nil)
	}
	if reason := d.refusal(w.offer); reason != "" {
		return d.giveUp(ctx, w, &runnerv1.DeclineRequest{Reason: reason})
	}
	mark, taken, err := w.dir.Mark()
	switch {
	case err != nil:
		return d.giveUp(ctx, w, &runnerv1.DeclineRequest{Reason: err.Error()})
	case !taken && d.cfg.Elapsed() < w.until:
		return false, nil
	case !taken:
		d.log.InfoContext(ctx, "an allocation did not come in time", "attempt", w.id, "job", w.offer.GetAllocation())
		return d.giveUp(ctx, w, nil) // the server has its own word about that
	}
	if err := w.dir.Unseen(); err != nil {
		return false, err // until the server takes the offer back, and its job with it
	}
	hello, err := call(ctx, supervisorOf(d.cfg.Supervisors, w.dir).Hello, &supervisev1.HelloRequest{})
	if err != nil || hello.GetBootNonce() != mark.BootNonce {
		return d.deaf(ctx, w, mark)
	}
	w.dead = 0
	return d.claimAwaited(ctx, w, mark)
}

// claimAwaited claims a turn whose supervisor is there.
func (d *Daemon) claimAwaited(ctx context.Context, w *awaited, mark state.Mark) (over bool, err error) {
	c := d.line.get()
	if c == nil {
		return false, nil
	}
	no, err := d.turnRefused(w.offer)
	if err != nil {
		return false, err
	}
	if no != nil {
		return d.giveUp(ctx, w, no)
	}
	d.log.InfoContext(ctx, "an allocation has its supervisor", "attempt", w.id, "job", w.offer.GetAllocation(), "allocation", mark.Alloc, "process", mark.PID)
	if err := d.claimAs(ctx, c, w.dir, mark.BootNonce); err != nil {
		if isStaleEpoch(err) {
			d.line.drop(c, err)
		}
		return false, err // the same nonce claims again
	}
	// Who ends an attempt looks for it here first, and then among those that were claimed.
	if why := w.unwanted.Load(); why != nil {
		if a := d.table.get(w.id); a != nil {
			d.cutOff(a, why)
		}
	}
	return true, nil
}

// deaf deals with a supervisor that does not answer: one that has ended without work is
// told to the server, one that lives has a while. Its last words are told with it: its log
// goes with the directory, and Nomad forgets the job.
func (d *Daemon) deaf(ctx context.Context, w *awaited, mark state.Mark) (over bool, err error) {
	now := d.cfg.Elapsed()
	if w.dead == 0 {
		w.dead = now
	}
	runs := w.dir.Runs(mark)
	if runs && now-w.dead < deafFor {
		return false, nil
	}
	reason := "the supervisor of job " + w.offer.GetAllocation() + " ended before the turn was claimed"
	if runs {
		reason = fmt.Sprintf("the supervisor of job %s did not answer for %s before the turn was claimed, and was ended", w.offer.GetAllocation(), deafFor)
	}
	if last := strings.Join(w.dir.LastWords(), "; "); last != "" {
		reason += "; its last words: " + legible.Line(last)
	} else {
		reason += "; it has written nothing"
	}
	d.problems.note("work", protocol.Errorf(protocol.CodeInternal, "turn attempt %s failed on this machine: %s", w.id, reason))
	return d.giveUp(ctx, w, &runnerv1.DeclineRequest{Reason: reason, Ended: !runs})
}

// giveUp ends the wait: nobody can take the directory any more, who had is ended, and the
// server is told where that is news to it.
func (d *Daemon) giveUp(ctx context.Context, w *awaited, no *runnerv1.DeclineRequest) (over bool, err error) {
	if err := d.discard(ctx, w.dir); err != nil {
		return false, err
	}
	w.told = no
	w.over.Store(true)
	return d.tell(ctx, w)
}

// tell sends the offer elsewhere, when there is a link and the server has not taken it
// back itself.
func (d *Daemon) tell(ctx context.Context, w *awaited) (over bool, err error) {
	if w.told == nil || w.unwanted.Load() != nil {
		return true, nil
	}
	c := d.line.get()
	if c == nil {
		return false, nil
	}
	if err := d.decline(ctx, c, w.offer, w.told); err != nil {
		if isStaleEpoch(err) {
			d.line.drop(c, err)
		}
		return false, err
	}
	return true, nil
}

// discard takes an attempt's directory away that was not claimed, with whoever is in it:
// first nobody can take it any more, then who had is ended.
func (d *Daemon) discard(ctx context.Context, dir state.Attempt) error {
	if err := dir.Withdraw(); err != nil && !errors.Is(err, state.ErrTaken) {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := d.cfg.Supervisors.Kill(limit, dir); err != nil {
		return protocol.Errorf(protocol.CodeUnavailable, "the supervisor of attempt %s cannot be ended: %w", dir.ID, err)
	}
	return dir.Remove()
}

// recoverAwaited waits on for what an earlier daemon was offered.
func (d *Daemon) recoverAwaited(ctx context.Context, dir state.Attempt) {
	o := new(runnerv1.Offer)
	raw, err := dir.Offer()
	if err == nil {
		err = proto.Unmarshal(raw, o)
	}
	if _, taken, damaged := dir.Mark(); err == nil && damaged == nil && !taken && !dir.Sees() {
		err = dir.Expect(o.GetAllocation(), raw) // whoever takes it is to be seen by this daemon
	}
	if err == nil {
		d.problems.note("allocation", d.startAwait(ctx, dir.ID, o, dir))
		return
	}
	d.log.WarnContext(ctx, "an offer with an allocation cannot be read, and is waited for again when it comes again", "attempt", dir.ID, "error", err)
	if err := d.discard(ctx, dir); err != nil {
		d.problems.note("cleanup", err)
	}
}

// awaitedBeside counts turns that wait for their allocation, but for one and for what the
// server has taken back.
func (d *Daemon) awaitedBeside(id string) (n int) {
	for _, w := range d.awaiting.all() {
		if w.id.String() != id && w.unwanted.Load() == nil && !w.over.Load() {
			n++
		}
	}
	return n
}
