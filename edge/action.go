package edge

import (
	"context"
	"errors"

	"bivouac/edge/fault"
	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

func actionOp(id protocol.AttemptID) string { return "action " + id.String() }

// startAction runs a claimed device action, where the owner holds a second key after
// the decision. Its intent is on the disk; right before the effect the lease is
// asked (INV-20); the result is on the disk before anybody hears of it.
func (d *Daemon) startAction(a *attempt, w *runnerv1.DeviceWork) {
	d.ops.start(actionOp(a.id), func(ctx context.Context) {
		no, over := d.awaitKey(ctx, a)
		if no != nil {
			d.settleAction(a, no)
		}
		if over {
			return
		}
		in := d.rules.Load()
		r := in.device.Do(ctx, w, func() error {
			if d.paused.Load() {
				return protocol.Errorf(protocol.CodePermissionDenied, "the owner has paused this machine")
			}
			now := d.rules.Load()
			return errors.Join(a.permit(), in.still(now, w), d.unlocked(a.id, now, w))
		})
		fault.Here(fault.EdgeEffectDone)
		d.settleAction(a, r)
	})
}

func (d *Daemon) settleAction(a *attempt, r *runnerv1.Result) {
	if err := d.actions.result(a.id, r); err != nil {
		// The intent stays: the next start inspects what happened.
		d.problems.note("journal", err)
		d.log.Error("the result of an action cannot be journalled", "attempt", a.id, "error", err)
		return
	}
	fault.Here(fault.EdgeResultJournalled)
	a.seq.Store(int64(len(d.actions.entry(a.id).records)))
	a.ended.Store(true)
	d.wakeReport.set()
}

// recoverActions reads the action log. A claimed attempt without a result was
// interrupted: what it did is inspected, never repeated (INV-5). One that waited for
// the owner's second key had not begun, and goes on waiting.
func (d *Daemon) recoverActions(ctx context.Context) error {
	var err error
	if d.actions, err = openActions(d.cfg.State); err != nil {
		return err
	}
	for id, e := range d.actions.claims() {
		a := &attempt{id: id, kind: protocol.KindAction, fence: e.fence, lease: lease.NewLease(d.cfg.Elapsed)}
		a.seq.Store(int64(len(e.records)))
		d.table.add(a)
		switch {
		case e.result:
			a.ended.Store(true)
			continue
		case !e.intent:
			d.holdBack(a, e.work, e.asked)
			d.startAction(a, e.work)
			continue
		}
		r := d.rules.Load().device.Inspect(e.work)
		d.log.InfoContext(ctx, "an interrupted action was inspected", "attempt", id, "action", e.work.GetAction(), "status", r.GetStatus())
		d.settleAction(a, r)
		if !a.ended.Load() {
			return protocol.Errorf(protocol.CodeUnavailable, "the outcome of attempt %s cannot be journalled: check the disk of %s", id, d.cfg.State.Path())
		}
	}
	return nil
}
