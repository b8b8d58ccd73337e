package edge

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/fault"
	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/state"
	"bivouac/edge/supervise/protocol/supervisev1"
)

// offer answers an invitation: it declines with a reason, or claims and starts
// the work. An error means that the answer did not reach the server.
func (d *Daemon) offer(ctx context.Context, c *connection, o *runnerv1.Offer) error {
	var id protocol.AttemptID
	if err := id.UnmarshalText([]byte(o.GetAttemptId())); err != nil || id.IsZero() {
		d.log.WarnContext(ctx, "an offer names no attempt", "error", err)
		return nil
	}
	if d.table.get(id) != nil {
		return nil // claimed before; the answer to the server is on its way
	}
	if w := d.awaiting.get(id); w != nil && !later(o, w.offer) {
		return nil // the delivery came again, or after a later one
	}
	if reason := d.refusal(o); reason != "" {
		return d.decline(ctx, c, o, &runnerv1.DeclineRequest{Reason: reason})
	}
	if o.GetSubjectKind() == protocol.KindTurn {
		no, err := d.turnRefused(o)
		if err != nil {
			return err
		}
		if no != nil {
			return d.decline(ctx, c, o, no)
		}
		if o.GetAllocation() != "" {
			return d.await(ctx, c, id, o)
		}
		return d.claimTurn(ctx, c, id)
	}
	return d.claimAction(ctx, c, id)
}

// decline sends an offer elsewhere, with the reason. It is of that offer alone: the
// server may have made the attempt another one meanwhile.
func (d *Daemon) decline(ctx context.Context, c *connection, o *runnerv1.Offer, no *runnerv1.DeclineRequest) error {
	d.log.InfoContext(ctx, "offer declined", "attempt", o.GetAttemptId(), "reason", no.GetReason())
	no.AttemptId, no.Allocation, no.Epoch = o.GetAttemptId(), o.GetAllocation(), c.epoch
	_, err := call(ctx, d.client.Decline, no)
	return onlyTransient(err)
}

// refusal says why this machine does not take an offer now.
func (d *Daemon) refusal(o *runnerv1.Offer) string {
	f := d.facts.Load()
	switch {
	case d.paused.Load():
		return "the owner has paused this machine"
	case d.diskFull() != "":
		return d.diskFull()
	case o.GetSubjectKind() == protocol.KindAction:
		most := maxDeviceActions
		if q := int(f.GetQuota().GetMaxActiveActions()); q > 0 {
			most = min(most, q)
		}
		if d.table.active(protocol.KindAction) >= most {
			return fmt.Sprintf("%d actions run on this machine already", most)
		}
		if n := d.keys.open(); n >= maxQuestions {
			return fmt.Sprintf("%d actions wait for the owner of this machine already", n)
		}
		return ""
	case o.GetSubjectKind() != protocol.KindTurn:
		return fmt.Sprintf("this machine knows no work of kind %q", o.GetSubjectKind())
	case f.GetBoundary() == "":
		return "this machine has no sandbox: " + f.GetSandboxProblem()
	case o.GetBoundary() != "" && o.GetBoundary() != f.GetBoundary():
		return fmt.Sprintf("this machine confines with %q, the offer asks for %q", f.GetBoundary(), o.GetBoundary())
	case o.GetEgress() && f.GetRefusesEgress():
		return noEgress
	case d.table.active(protocol.KindTurn)+d.awaitedBeside(o.GetAttemptId()) >= int(f.GetSlots()):
		return fmt.Sprintf("all %d slots of this machine are taken", f.GetSlots())
	}
	return ""
}

// noEgress is the owner's word about packages.
const noEgress = "the owner of this machine lets no sandbox read packages (package_egress = false in edge.hcl), and this turn names registries"

// leastFree is the space below which nothing is claimed: what must be durable before
// it happens could not be written.
const leastFree = 128 << 20

// diskFull is the sentence about a full disk; empty while there is room, or where
// that cannot be measured.
func (d *Daemon) diskFull() string {
	free, err := d.cfg.FreeFunc(d.cfg.State.Path())
	if err != nil || free >= leastFree {
		return ""
	}
	return fmt.Sprintf("the disk of this machine has %d MiB left, and %d are needed to keep a journal: make room below %s",
		free>>20, leastFree>>20, d.cfg.State.Path())
}

// claim asks for the lease under a stored boot nonce, of the offer that named the job.
func (d *Daemon) claim(ctx context.Context, c *connection, id protocol.AttemptID, kind, nonce, job string) (a *attempt, res *runnerv1.ClaimResponse, err error) {
	a = &attempt{id: id, kind: kind, lease: lease.NewLease(d.cfg.Elapsed)}
	sent := a.lease.Now()
	res, err = call(ctx, d.client.Claim, &runnerv1.ClaimRequest{AttemptId: id.String(), Epoch: c.epoch, BootNonce: nonce, Allocation: job,
		OwnerDecided: d.actions.entry(id).decided})
	if err != nil {
		return nil, nil, err
	}
	if state.Hex(canonical.Digest(res.GetWork())) != state.Hex(res.GetSpecDigest()) {
		return nil, nil, protocol.Errorf(protocol.CodeDataLoss, "the work of attempt %s does not have the digest that was promised", id)
	}
	a.fence = protocol.Fence(res.GetTerms().GetFence())
	a.grant(sent, res.GetTerms())
	return a, res, nil
}

// onlyTransient keeps errors that a new connection may mend, as when the link
// moved to a later epoch under the call. Any other refusal is
// of one attempt, which was taken back or went elsewhere meanwhile: whether the
// server still knows this machine is what the next connect says.
func onlyTransient(err error) error {
	if transient(err) || isStaleEpoch(err) {
		return err
	}
	return nil
}

// claimTurn stores a boot nonce and claims under it.
func (d *Daemon) claimTurn(ctx context.Context, c *connection, id protocol.AttemptID) error {
	dir := d.cfg.State.Attempt(id)
	if awaits(dir) || d.awaits(id) {
		if err := d.forgetAwaited(ctx, id); err != nil || d.table.get(id) != nil {
			return err
		}
	}
	nonce, err := dir.Make()
	if err != nil {
		return err
	}
	return d.claimAs(ctx, c, dir, nonce)
}

// claimAs claims a turn under the nonce of its directory, journals the claim and hands
// over to the turn's op. A turn that is not to be had leaves nothing.
func (d *Daemon) claimAs(ctx context.Context, c *connection, dir state.Attempt, nonce string) error {
	id := dir.ID
	of, awaited := dir.Allocation()
	a, res, err := d.claim(ctx, c, id, protocol.KindTurn, nonce, of.Job)
	if err != nil {
		if onlyTransient(err) != nil {
			return err // the same nonce claims again
		}
		d.log.InfoContext(ctx, "claim refused", "attempt", id, "error", err)
		if awaited {
			return d.discard(ctx, dir)
		}
		_ = dir.Remove()
		return nil
	}
	begin := &supervisev1.BeginRequest{Work: res.GetWork(), SpecDigest: res.GetSpecDigest(), Terms: res.GetTerms(), BrokerAddress: d.broker()}
	if err := d.sameTurn(id, res); err != nil {
		// It is answered for and never starts: not by a next daemon either, which takes
		// up what the disk says was claimed. INV-6.
		a.cut.Store(protocol.Errorf(protocol.CodeOf(err), "%w", err))
	} else if err := errors.Join(dir.SaveSandbox(*d.seen.Load()), dir.SaveClaim(begin)); err != nil {
		return err
	}
	fault.Here(fault.EdgeClaimJournalled)
	d.dropTurn(id)
	d.table.add(a)
	d.wakeRenew.Ring()
	d.startTurn(a, dir, begin, false)
	return nil
}

// claimAction claims under a nonce that the action log keeps, journals claim and
// intent, or the owner's question, in one durable record, and starts the action's op.
func (d *Daemon) claimAction(ctx context.Context, c *connection, id protocol.AttemptID) error {
	nonce, err := d.actions.nonce(id)
	if err != nil {
		return err
	}
	a, res, err := d.claim(ctx, c, id, protocol.KindAction, nonce, "")
	if err != nil {
		if onlyTransient(err) != nil {
			return err
		}
		d.log.InfoContext(ctx, "claim refused", "attempt", id, "error", err)
		return onlyTransient(d.actions.forget(id, err))
	}
	var work runnerv1.Work
	if err := proto.Unmarshal(res.GetWork(), &work); err != nil {
		return err
	}
	q := d.question(a, work.GetDevice())
	if err := d.actions.claimed(a, work.GetDevice(), q); err != nil {
		return err
	}
	fault.Here(fault.EdgeClaimJournalled)
	if q == nil {
		fault.Here(fault.EdgeEffectIntent)
	}
	a.seq.Store(2) // it started, and its intent or its question
	d.holdBack(a, work.GetDevice(), q)
	d.table.add(a)
	d.wakeRenew.Ring()
	d.startAction(a, work.GetDevice())
	return nil
}
