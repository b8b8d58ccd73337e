package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/redact"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/capability"
	"bivouac/server/execution"
	"bivouac/server/planted"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Claim gives an offered attempt to the first supervisor that asks, as the
// runner to which it was offered. The same supervisor may ask again: its answer
// may have been lost. INV-14.
func (e *Engine) Claim(ctx context.Context, c store.Caller, req *runnerv1.ClaimRequest) (*runnerv1.ClaimResponse, error) {
	id, err := protocol.ParseID[protocol.AttemptKind](req.AttemptId)
	if err != nil {
		return nil, err
	}
	if err := e.links.current(c.Runner(), req.Epoch); err != nil {
		return nil, err
	}
	if err := e.visible(ctx, c, id); err != nil {
		return nil, err
	}
	var a execution.Attempt
	var auth *authority
	var turn session.Turn
	err = e.change(ctx, "claim", func(tx *store.Tx) (_ *turnTx, err error) {
		if a, err = e.claimAttempt(tx, id, c.Runner(), req); err != nil {
			return nil, err
		}
		e.links.claimed(c.Runner(), id) // before the commit, after which others may ask for its cleanup
		return e.openAttempt(tx, id)
	}, func(w *turnTx) (err error) {
		turn = w.turn
		auth, err = w.claimed(a)
		w.ownerLetIn(a, req.OwnerDecided)
		return err
	})
	if err != nil {
		return nil, claimRefused(err)
	}
	fault.Here(fault.ServerClaimCommitted)
	e.leases.start(a, turn.Session, auth)
	terms, err := e.terms(a, auth)
	if err != nil {
		return nil, claimRefused(err) // taken back since: its work ends by its own tick
	}
	e.cfg.Log.Info("attempt claimed", "attempt", a.ID, "runner", a.Runner, "turn", turn.ID, "fence", a.Fence)
	return &runnerv1.ClaimResponse{Terms: terms, Work: a.Work, SpecDigest: a.SpecDigest}, nil
}

// visible asks the store, as the runner, whether the attempt exists for it. INV-9.
func (e *Engine) visible(ctx context.Context, c store.Caller, id protocol.AttemptID) error {
	if planted.Chosen == planted.Foreign {
		return nil
	}
	return e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		_, err := tx.Attempt(id)
		return err
	})
}

// claimAttempt gives an attempt to who claims the offer that stands. The supervisor of an
// allocation whose offer was taken back is not the one of the next. INV-14.
func (e *Engine) claimAttempt(tx *store.Tx, id protocol.AttemptID, r protocol.RunnerID, req *runnerv1.ClaimRequest) (execution.Attempt, error) {
	if plantedNoClaim {
		if a, err := tx.Attempt(id); err == nil && a.State.Held() {
			return a, nil
		}
	}
	a, err := tx.ClaimAttempt(id, r, req.BootNonce)
	if err == nil && a.Allocation != req.Allocation {
		return a, protocol.Errorf(protocol.CodeConflict, "attempt %s is offered in another way: %s", id, anotherWay(a))
	}
	return a, err
}

func anotherWay(a execution.Attempt) string {
	if a.Allocation == "" {
		return "its machine starts its supervisor"
	}
	return "the supervisor is that of job " + a.Allocation
}

// claimed checks authority again, and lets a turn's wall time run from its claim.
// INV-13.
func (w *turnTx) claimed(a execution.Attempt) (*authority, error) {
	snap, err := w.snapshot()
	if err != nil {
		return nil, err
	}
	if err := standing(w.tx, w.turn, snap); err != nil {
		return nil, err
	}
	if a.SubjectKind == execution.SubjectTurn && w.turn.State == session.Received {
		if err := w.step(session.TurnRun); err != nil {
			return nil, err
		}
		w.turn.Deadline = w.tx.Now.Add(w.wallLeft(a.QueuedAt, snap))
	}
	if a.ClaimedAt.Equal(w.tx.Now) {
		w.event(session.Event{Type: session.AttemptClaimed, Attempt: a.ID, Data: withAllocation(a, map[string]string{
			"runner": a.Runner.String(), "fence": a.Fence.String()})})
	}
	return w.attemptAuthority(a)
}

// withAllocation adds to the data of an event the job of the attempt's own allocation, where
// it has one.
func withAllocation(a execution.Attempt, data map[string]string) map[string]string {
	if a.Allocation != "" {
		data["allocation"] = a.Allocation
	}
	return data
}

// attemptAuthority is what the capabilities of an attempt may say; a device
// action needs none, and gets none, and neither does an attempt that is to end
// while a person decides. INV-7, INV-12.
func (w *turnTx) attemptAuthority(a execution.Attempt) (*authority, error) {
	if a.SubjectKind != execution.SubjectTurn {
		return nil, nil
	}
	auth, err := w.authority()
	if err != nil || w.turn.State == session.WaitingApproval {
		return nil, err
	}
	r, err := w.tx.Runner(a.Runner)
	if err != nil {
		return nil, err
	}
	auth.thumbprint = r.Thumbprint
	_, most, err := w.most()
	auth.whole = auth.slice.CeilingMicroUSD >= most
	return auth, err
}

// claimRefused tells a supervisor whose turn lost its authority that there is
// nothing to claim.
func claimRefused(err error) error {
	var t *taken
	if errors.As(err, &t) {
		return protocol.Errorf(protocol.CodePermissionDenied, "%s", t.message)
	}
	return err
}

// terms are what a claim or renewal gives: durations, and for a turn a fresh
// capability for the relay.
func (e *Engine) terms(a execution.Attempt, auth *authority) (*runnerv1.LeaseTerms, error) {
	return e.termsOf(heldAs(a, auth), a.ID)
}

func heldAs(a execution.Attempt, auth *authority) held {
	return held{clock: execution.Lease{AuthorityTTL: a.AuthorityTTL, Retention: a.Retention}, fence: a.Fence, authority: auth}
}

func (e *Engine) termsOf(h held, id protocol.AttemptID) (*runnerv1.LeaseTerms, error) {
	t := &runnerv1.LeaseTerms{Fence: int64(h.fence), AuthorityTtlMs: h.clock.AuthorityTTL.Milliseconds(), RetentionMs: h.clock.Retention.Milliseconds()}
	if h.authority == nil {
		return t, nil
	}
	var err error
	t.Capability, err = e.mint(h.authority, time.Now(), func(c *capability.Claims) {
		h.authority.forModel(c)
		c.Attempt, c.Fence = id, h.fence
		c.Egress = h.authority.snap.Agent.Egress // of turns that have a sandbox, and of their attempt alone
	})
	if s := h.authority.slice; s.ID != "" {
		t.Slice = &runnerv1.Slice{Id: s.ID.String(), CeilingMicroUsd: s.CeilingMicroUSD, Whole: h.authority.whole}
	}
	return t, err
}

// heldTerms are what a holder gets again. A server that has just started may have
// no certified key yet: that is no reason to lose work, so the durations come
// without a capability, and the holder goes on under the one it has.
func (e *Engine) heldTerms(h held, id protocol.AttemptID) (*runnerv1.LeaseTerms, error) {
	t, err := e.termsOf(h, id)
	if protocol.CodeOf(err) == protocol.CodeUnavailable {
		e.cfg.Log.Warn("a lease goes on without a fresh capability", "attempt", id, "error", err)
		return t, nil
	}
	return t, err
}

// Decline sends an offer elsewhere: the one that the machine names, and none that the
// attempt was made since.
func (e *Engine) Decline(ctx context.Context, c store.Caller, req *runnerv1.DeclineRequest) error {
	id, err := protocol.ParseID[protocol.AttemptKind](req.AttemptId)
	if err != nil {
		return err
	}
	if err := e.links.current(c.Runner(), req.Epoch); err != nil {
		return err
	}
	var a execution.Attempt
	var by execution.Runner
	err = e.cfg.Store.View(ctx, c, func(tx *store.Tx) (err error) {
		if a, err = tx.Attempt(id); err == nil {
			by, err = tx.Runner(c.Runner())
		}
		return err
	})
	if err != nil || a.State != execution.AttemptOffered || a.Runner != c.Runner() || a.Allocation != req.Allocation {
		return err // gone elsewhere already
	}
	if over, err := e.declinedByOwner(ctx, a, req); over || err != nil {
		return err
	}
	why := fmt.Sprintf("machine %s declined: %s", cmp.Or(by.Name, by.ID.String()), declined(req))
	if req.Ended && e.cfg.Allocations != nil && !a.AllocationAskedAt.IsZero() {
		err = e.endedEarly(ctx, a, by.Workload, why)
	} else {
		err = e.withdraw(ctx, a, why)
	}
	if err != nil && !lostRace(err) {
		return err
	}
	return nil
}

// maxDeclined bounds a machine's words: the last of a supervisor are some lines.
const maxDeclined = 1 << 10

func declined(req *runnerv1.DeclineRequest) string {
	reason, _ := redact.Text(req.Reason)
	return strings.ToValidUTF8(reason[:min(len(reason), maxDeclined)], "")
}

// Renew restarts lease clocks, one call for all leases of a runner. It reads and
// writes nothing: what was taken back is known from memory, and a slice that is
// too small is the usage tick's to fill. A lost lease is absent from the answer.
// INV-13, INV-20.
func (e *Engine) Renew(_ context.Context, c store.Caller, req *runnerv1.RenewRequest) (*runnerv1.RenewResponse, error) {
	if err := e.links.current(c.Runner(), req.Epoch); err != nil {
		return nil, err
	}
	if err := e.replicas.standing(); err != nil {
		return nil, err
	}
	resp := &runnerv1.RenewResponse{}
	for _, l := range req.Leases {
		id, err := protocol.ParseID[protocol.AttemptKind](l.AttemptId)
		if err != nil {
			continue // no lease of ours
		}
		h, alive := e.leases.renew(id, c.Runner(), protocol.Fence(l.Fence))
		if !alive {
			continue
		}
		if l.Short {
			e.leases.short(id)
			e.hungry.Ring()
		}
		terms, err := e.heldTerms(h, id)
		if isTaken(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		resp.Leases = append(resp.Leases, &runnerv1.LeaseVerdict{AttemptId: l.AttemptId, Alive: true, AcceptedSeq: h.accepted, Terms: terms})
	}
	return resp, nil
}

// Live passes text of a running turn to whoever watches its session.
func (e *Engine) Live(_ context.Context, c store.Caller, req *runnerv1.LiveRequest) error {
	id, err := protocol.ParseID[protocol.AttemptKind](req.AttemptId)
	if err != nil {
		return err
	}
	h, ok := e.leases.get(id, c.Runner(), protocol.Fence(req.Fence))
	if !ok {
		return protocol.Errorf(protocol.CodeStaleFence, "attempt %s is not held under that fence", req.AttemptId)
	}
	e.live.Publish(h.session, req.TextDelta)
	return nil
}
