package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/loop"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/execution"
	"bivouac/server/planted"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// activateBatch is how many turns one pass looks at.
const activateBatch = 64

// tickActivate makes the first queued turn of each free session its active one.
// While the broker is not reached the queue waits: a turn that could not call a
// model would only fail.
func (e *Engine) tickActivate(ctx context.Context) (bool, error) {
	desc, err := e.view.current(time.Now())
	if err != nil || !e.replicas.here() {
		return false, nil
	}
	var queued []session.Turn
	err = e.cfg.Store.View(ctx, store.AsLoop("activate"), func(tx *store.Tx) (err error) {
		if e.cfg.Quotas.HoldActivation() {
			queued, err = e.withinActive(tx)
		} else {
			queued, err = tx.Activatable(activateBatch)
		}
		if err == nil && planted.Chosen == planted.Order {
			queued, err = newestFirst(tx, queued)
		}
		return err
	})
	if err != nil {
		return false, err
	}
	return spread(e.atOnce, queued, func(t session.Turn) (bool, error) {
		// Owned before the store says so: the takeover tick must not find a turn of
		// this replica that this replica seems not to drive.
		fresh := e.owned.keep(t.ID)
		if err := e.activate(ctx, t.ID, desc); err != nil {
			if lostRace(err) {
				e.cfg.Meter.ActivationLost()
			}
			if fresh {
				e.owned.forget(t.ID)
			}
			return false, err
		}
		fault.Here(fault.ServerTurnActivated)
		return true, nil
	})
}

// newestFirst is the bug planted.Order.
func newestFirst(tx *store.Tx, heads []session.Turn) ([]session.Turn, error) {
	for i, head := range heads {
		all, _, err := tx.Turns(head.Session, 0, "") // newest first
		if err != nil {
			return nil, err
		}
		heads[i] = all[slices.IndexFunc(all, func(t session.Turn) bool { return t.State == session.Queued })]
	}
	return heads, nil
}

// activate is one conditional write: revocation is checked again, everything the
// turn may do is frozen, the owner row is taken and the budget slice reserved.
// INV-1, INV-10, INV-19.
func (e *Engine) activate(ctx context.Context, id protocol.TurnID, desc *brokerv1.DescribeResponse) error {
	return e.onTurn(ctx, "activate", id, func(w *turnTx) error {
		if w.turn.State != session.Queued {
			return protocol.Errorf(protocol.CodeConflict, "turn %s is %s", id, w.turn.State)
		}
		s, err := w.mayActivate()
		var t *taken
		if errors.As(err, &t) {
			return w.endCancelled(t.reason, t.message)
		} else if err != nil {
			return err
		}
		switch err := w.freeze(s, desc); protocol.CodeOf(err) {
		case "":
		case protocol.CodeInvalidArgument:
			return w.endCancelled(reasonAgent, "The agent's definition cannot be used any more: "+err.Error())
		case protocol.CodePolicyDenied:
			return w.endCancelled(reasonPolicy, err.Error())
		default:
			return err
		}
		if err := w.own(desc); err != nil {
			return err
		}
		w.event(session.Event{Type: session.TurnActivated, Data: map[string]string{
			"agent": s.Agent, "agent_digest": s.AgentDigest, "placement": string(w.turn.Placement),
			"policy_digest": w.snap.PolicyDigest, "grant": w.snap.Grant.String()}})
		waited := w.tx.Now.Sub(w.turn.QueuedAt)
		w.afterCommit(func() { e.cfg.Meter.Activated(waited) })
		if err := checkRoute(desc, w.snap.Agent.Model.Route, w.snap.DataBoundary); err != nil {
			return w.endFailed(routeReasons[protocol.CodeOf(err)], err.Error())
		}
		if _, err := registries(desc, w.snap.Agent.Egress); err != nil {
			return w.endFailed(reasonPolicy, err.Error())
		}
		return w.start(s)
	})
}

var routeReasons = map[protocol.Code]string{
	protocol.CodeNotFound:     loop.ReasonModelNotFound,
	protocol.CodePolicyDenied: reasonPolicy,
}

// mayActivate checks what may have changed since the prompt was admitted.
func (w *turnTx) mayActivate() (session.Session, error) {
	s, err := w.tx.Session(w.turn.Session)
	if err != nil {
		return s, err
	}
	if s.State != session.Open {
		return s, &taken{reasonSessionClosed, "The session is " + string(s.State) + "."}
	}
	return s, standing(w.tx, w.turn, nil)
}

// freeze takes the snapshot: from here on the turn may only narrow.
func (w *turnTx) freeze(s session.Session, desc *brokerv1.DescribeResponse) error {
	agent, err := w.e.agentOf(w.tx, s)
	if err != nil {
		return err
	}
	if err := w.mayBegin(s, &agent.Limits); err != nil {
		return err
	}
	inst, err := w.tx.EnsureInstance(s.Tenant, s.Principal, s.Agent)
	if err != nil {
		return err
	}
	if inst.Generation != s.Generation { // a session outlives its instance, under new handles
		s.Generation = inst.Generation
		if err := w.tx.SaveSession(s, s.State); err != nil {
			return err
		}
	}
	machines, err := machinesOf(w.tx, s.Principal)
	if err != nil {
		return err
	}
	grants, err := grantsFor(w.tx, s.Principal, s.Agent)
	if err != nil {
		return err
	}
	snap, err := policy.NewSnapshot(policy.SnapshotParams{
		Agent: agent, AgentDigest: s.AgentDigest, Machines: machines, Generation: inst.Generation,
		Grants: grants, BrokerPool: desc.Pool, BrokerBoot: desc.BootNonce,
	})
	if err != nil {
		return err
	}
	w.snap = &snap
	snap.Egress, _ = registries(desc, agent.Egress) // what is missing ends the turn, see activate
	w.turn.Snapshot, w.turn.SnapshotDigest, err = snap.Encode()
	return err
}

// machinesOf are the runners that a principal may use for device actions now.
func machinesOf(tx *store.Tx, p protocol.PrincipalID) ([]policy.Machine, error) {
	bindings, err := tx.BindingsOf(p)
	if err != nil {
		return nil, err
	}
	var out []policy.Machine
	for _, b := range bindings {
		r, err := tx.Runner(b.Runner)
		if err != nil {
			return nil, err
		}
		if r.State != execution.RunnerActive {
			continue
		}
		m := policy.Machine{Runner: r.ID, Name: r.Name}
		for _, action := range r.Facts.Actions {
			if b.Allows(action) {
				m.Actions = append(m.Actions, action)
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// own takes the owner row and reserves the budget slice. INV-3, INV-19.
func (w *turnTx) own(desc *brokerv1.DescribeResponse) error {
	var err error
	if err = w.step(session.TurnActivate); err != nil {
		return err
	}
	if w.turn.OwnerFence, err = w.turn.OwnerFence.Next(w.tx.Epoch()); err != nil {
		return err
	}
	now, limits := w.tx.Now, w.snap.Agent.Limits
	w.turn.Owner = w.e.cfg.Replica
	w.turn.Placement = session.Placement(w.snap.Agent.Placement)
	w.turn.Deadline = now.Add(limits.MaxWall)
	if w.turn.Placement == session.PlacementRunner {
		w.turn.Deadline = w.turn.Deadline.Add(limits.PlaceWithin) // starts again with the claim
	}
	return w.reserve(desc.BootNonce, portion(limits.MaxCostMicroUSD, 0), limits.MaxCostMicroUSD)
}

// start begins the loop here, or makes the attempt that runs it on a runner.
func (w *turnTx) start(s session.Session) error {
	if w.turn.Placement == session.PlacementRunner {
		w.turn.Attempts++
		return w.startAttempt(s, nil)
	}
	conversation, err := w.conversation()
	if err != nil {
		return err
	}
	w.loop = loop.New(w.snap.Spec(policy.SpecParams{Conversation: conversation, Prompt: w.turn.Prompt}))
	return w.feed(loop.Begin{})
}

// conversation is what the session's ended turns said.
func (w *turnTx) conversation() ([]*runtimev1.Message, error) {
	projections, err := w.tx.Projection(w.turn.Session)
	if err != nil {
		return nil, err
	}
	return session.Conversation(projections...)
}
