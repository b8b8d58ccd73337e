package edge

import (
	"context"
	"fmt"
	"time"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
)

// judge takes the server's verdicts on leases, in answer to a request sent at
// sent that named all of them.
func (d *Daemon) judge(all []*attempt, sent time.Duration, verdicts []*runnerv1.LeaseVerdict) {
	by := map[string]*runnerv1.LeaseVerdict{}
	for _, v := range verdicts {
		by[v.GetAttemptId()] = v
	}
	for _, a := range all {
		if a.lost.Load() {
			continue
		}
		v := by[a.id.String()]
		if !v.GetAlive() {
			d.cutOff(a, protocol.Errorf(protocol.CodeStaleFence, "the server took the lease of attempt %s back", a.id))
			continue
		}
		if v.GetTerms() != nil {
			a.grant(sent, v.GetTerms())
			d.pass(a, v.GetTerms())
		}
	}
}

// cutOff takes an attempt's authority, once: its action is refused from now on,
// its sandboxes are ended. Its records still go to the server, as evidence.
func (d *Daemon) cutOff(a *attempt, why *protocol.Error) {
	switch why.Code {
	case protocol.CodeStaleFence, protocol.CodeLeaseExpired:
		a.lost.Store(true)
	}
	if a.ended.Load() || !a.cut.CompareAndSwap(nil, why) {
		return
	}
	d.log.Warn("an attempt lost its authority", "attempt", a.id, "reason", why.Message)
	if a.kind == protocol.KindAction {
		d.ops.Stop(actionOp(a.id), why)
		return
	}
	d.endTurn(a, why.Message)
}

// stopAttempt obeys the server's word that an attempt should end, or one offer of it. An
// attempt whose claim is under way is cut off by who claims it.
func (d *Daemon) stopAttempt(s *runnerv1.Stop) {
	why := protocol.Errorf(protocol.CodeCancelled, "%s", s.GetReason())
	job := s.GetAllocation()
	if w := d.awaiting.get(protocol.AttemptID(s.GetAttemptId())); w != nil && (job == "" || job == w.offer.GetAllocation()) {
		w.unwanted.Store(why)
		w.look.Ring()
	}
	a := d.table.get(protocol.AttemptID(s.GetAttemptId()))
	if a == nil || job != "" { // an offer was taken back, and no offer is claimed then
		return
	}
	if a.kind == protocol.KindAction { // an effect that began is not cut off
		why = protocol.Errorf(protocol.CodeCancelled, "stopped before it happened: %s", s.GetReason())
	}
	d.cutOff(a, why)
}

// fence ends everything because the server said so, and ends the daemon.
func (d *Daemon) fence(ctx context.Context, why error) error {
	if d.leaving.Load() {
		op.Sleep(ctx, watchEvery/10) // its owner's command ends the daemon
		return nil
	}
	for _, a := range d.table.all() {
		d.cutOff(a, protocol.Errorf(protocol.CodePermissionDenied, "%w", why))
	}
	d.awaitQuiet(ctx)
	if d.askedToLeave.Load() {
		return &finalError{err: errLeft} // it has heard its owner, and only the answer was lost
	}
	return &finalError{err: enrolAgain(d.cfg.State, why)}
}

// enrolAgain adds the command that helps, unless the server named it.
func enrolAgain(dir *state.Dir, err error) error {
	return &protocol.Error{Code: protocol.CodeOf(err), Err: err,
		Message: fmt.Sprintf("%v — this machine must enrol again: `%s`, then `%s` with a new code", err, dir.Command("leave --force"), dir.Command("join URL CODE"))}
}

// awaitQuiet waits until no sandbox runs, at most for stopTimeout and a kill.
func (d *Daemon) awaitQuiet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*stopTimeout)
	defer cancel()
	for d.turns.stopping() > 0 && op.Sleep(ctx, 10*time.Millisecond) {
	}
}
