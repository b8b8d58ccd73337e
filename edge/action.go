package edge

import (
	"context"
	"errors"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/lease"
	"bivouac/edge/link"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

func actionOp(id protocol.AttemptID) string { return "action " + id.String() }

// startAction runs a claimed device action, where the owner holds a second key after
// the decision. Its intent is on the disk; right before the effect the lease is
// asked (INV-20); the result is on the disk before anybody hears of it.
func (d *Daemon) startAction(a *attempt, w *runnerv1.DeviceWork) {
	d.ops.Start(actionOp(a.id), func(ctx context.Context) {
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

// settleAction puts a result on the disk. While the disk takes nothing it tries
// again, also when the attempt is cut off: the effect is over, and this process alone
// knows how it went. When that ends first the intent stays, and the next start
// inspects what happened (INV-5).
func (d *Daemon) settleAction(a *attempt, r *runnerv1.Result) {
	backoff := link.Backoff{Base: d.cfg.BackoffBase, Max: settleEvery}
	for {
		err := d.journalResult(a, r)
		if err == nil {
			return
		}
		d.problems.note("journal", err)
		if backoff.Failures() == 0 {
			d.log.Error("the result of an action cannot be journalled", "attempt", a.id, "error", err)
		}
		broken := protocol.CodeOf(err) == protocol.CodeDataLoss // until a restart
		if broken || !op.Sleep(d.ops.Context(), backoff.Next()) {
			return
		}
	}
}

// settleEvery is how long a result waits at most for the next try.
const settleEvery = 5 * time.Second

func (d *Daemon) journalResult(a *attempt, r *runnerv1.Result) error {
	if err := d.actions.result(a.id, r); err != nil {
		return err
	}
	fault.Here(fault.EdgeResultJournalled)
	d.problems.note("journal", nil)
	a.seq.Store(int64(len(d.actions.entry(a.id).records)))
	a.ended.Store(true)
	d.wakeReport.Ring()
	return nil
}

// recoverActions reads the action log. A claimed attempt without a result was
// interrupted: what it did is inspected, never repeated (INV-5). One that waited for
// the owner's second key had not begun, and goes on waiting.
func (d *Daemon) recoverActions(ctx context.Context) error {
	var err error
	if d.actions, err = openActions(d.cfg.State, d.cfg.SyncFunc); err != nil {
		return err
	}
	if err := d.recoverTurnKeys(); err != nil {
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
		if err := d.journalResult(a, r); err != nil {
			return protocol.Errorf(protocol.CodeUnavailable, "the outcome of attempt %s cannot be journalled: %w; check the disk of %s", id, err, d.cfg.State.Path())
		}
	}
	return nil
}
