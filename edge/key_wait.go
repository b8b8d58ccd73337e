package edge

import (
	"context"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
)

// keySeq is the record of the decision: it started, it was asked, it was decided.
const keySeq = 3

// awaitKey waits for the owner's second key, where it was asked for. With an answer
// of yes, which the server has too, the intent is on the disk and the action goes on.
// Otherwise it is over here: with a result, or without one when the daemon ends and
// the next one goes on waiting.
func (d *Daemon) awaitKey(ctx context.Context, a *attempt) (no *runnerv1.Result, over bool) {
	h := d.keys.get(a.id)
	if h == nil {
		return nil, false
	}
	d.log.InfoContext(ctx, "an action waits for the owner", "attempt", a.id, "for", d.keyLeft(h.asked).Round(time.Second), "approve", d.cfg.State.Command("approve "+a.id.String()))
	for {
		e := d.actions.entry(a.id)
		no, err := d.keyRefused(a, h, e)
		switch {
		case no != nil:
			d.keys.remove(a.id)
			return no, true
		case d.ops.Context().Err() != nil: // ctx ends with a cut, too, which the next round sees
			return nil, true
		case err != nil:
			d.problems.note("journal", err)
			h.wake.Wait(ctx, watchEvery)
		case e.decided != nil && e.accepted >= keySeq && a.lease.Authority() > 0:
			if err := d.actions.intent(a.id); err != nil {
				d.problems.note("journal", err)
				d.log.ErrorContext(ctx, "the intent of an approved action cannot be journalled", "attempt", a.id, "error", err)
				h.wake.Wait(ctx, watchEvery)
				continue
			}
			fault.Here(fault.EdgeEffectIntent)
			a.holds.Store(false)
			d.keys.remove(a.id)
			return nil, false
		default:
			h.wake.Wait(ctx, max(time.Millisecond, min(watchEvery, d.keyLeft(h.asked)))) // timers do not count suspend
		}
	}
}

// keyRefused is how a waiting action ends without being done; nil while it may still
// be. Nothing ran in any of these cases, so none is unknown.
func (d *Daemon) keyRefused(a *attempt, h *heldKey, e actionEntry) (*runnerv1.Result, error) {
	if cut := a.cut.Load(); cut != nil {
		return endedWaiting(cut), nil
	}
	if d.paused.Load() {
		return endedWaiting(protocol.Errorf(protocol.CodePermissionDenied, "the owner has paused this machine")), nil
	}
	if err := d.placeKept(h); err != nil {
		return endedWaiting(err), nil
	}
	if e.decided == nil {
		if d.keyLeft(h.asked) > 0 {
			return nil, nil
		}
		err := d.settleKey(a.id, h.asked, &runnerv1.OwnerDecided{Decision: secondkey.Expired})
		return nil, err
	}
	switch e.decided.GetDecision() {
	case secondkey.Approved:
		if d.keyLeft(h.asked) > 0 {
			return nil, nil
		}
		return notApproved("The owner of the machine approved this call, but the server did not hear of it in time. It did not run."), nil
	case secondkey.Expired:
		return notApproved("The owner of the machine did not approve this call in time. It did not run."), nil
	}
	text := "The owner of the machine denied this call. It did not run."
	if r := e.decided.GetReason(); r != "" {
		text += " Their reason: " + r
	}
	return notApproved(text), nil
}

// placeKept refuses what the owner took back, or moved, while it waited: the file
// that is approved is the one that was asked about. INV-10.
func (d *Daemon) placeKept(h *heldKey) *protocol.Error {
	f, err := d.rules.Load().device.FolderOf(h.work)
	switch {
	case err != nil:
		return protocol.Errorf(protocol.CodeOf(err), "%w", err)
	case f.Path != h.asked.Place:
		return protocol.Errorf(protocol.CodePermissionDenied, "the owner of this machine gave the folder %q another place while this call waited", f.Name)
	}
	return nil
}

// endedWaiting is the result of an action that ended before it was decided.
func endedWaiting(why *protocol.Error) *runnerv1.Result {
	r := cancelledResult(why)
	switch why.Code {
	case protocol.CodeCancelled:
	case protocol.CodePermissionDenied, protocol.CodePolicyDenied:
		r.Status = protocol.ResultDenied
	default:
		r.Status = protocol.ResultFailed
	}
	return r
}

func notApproved(text string) *runnerv1.Result {
	return &runnerv1.Result{Status: protocol.ResultDenied, Code: string(protocol.CodePermissionDenied), Message: text}
}
