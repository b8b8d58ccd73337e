package api

import (
	"context"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/engine"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

type approvals struct{ Config }

func (s approvals) ListApprovals(ctx context.Context, r *apiv1.ListApprovalsRequest) (*apiv1.ListApprovalsResponse, error) {
	out := &apiv1.ListApprovalsResponse{}
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		out.Approvals = nil
		list, err := tx.Approvals(r.GetIncludeDecided())
		if err != nil {
			return err
		}
		for _, a := range list {
			one, err := wholeApproval(tx, a)
			if err != nil {
				return err
			}
			out.Approvals = append(out.Approvals, one)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	waiting, err := s.Engine.OwnerQuestions(ctx, callerOf(ctx))
	for _, q := range waiting {
		out.OwnerQuestions = append(out.OwnerQuestions, ownerQuestionOut(q))
	}
	return out, err
}

// ownerQuestionOut is what waits for the owner of a machine, with what decides it there.
func ownerQuestionOut(q engine.OwnerQuestion) *apiv1.OwnerQuestion {
	approve, deny := q.Commands()
	return &apiv1.OwnerQuestion{
		AttemptId: q.Attempt.String(), TurnId: q.Turn.String(), SessionId: q.Session.String(), RunnerId: q.Runner.String(), RunnerName: q.Machine,
		Work: q.Work, Arguments: q.Arguments, Digest: q.Digest, AskedAt: at(q.AskedAt), ExpiresAt: at(q.Until), ApproveThere: approve, DenyThere: deny,
	}
}

// approvalID reads the id of an approval. Of what waits for the owner of a machine,
// the refusal says where it is decided.
func (s approvals) approvalID(ctx context.Context, text string) (protocol.ApprovalID, error) {
	id, err := protocol.ParseID[protocol.ApprovalKind](text)
	for _, kind := range []string{"att_", "trn_"} {
		if err != nil && strings.HasPrefix(text, kind) {
			return id, s.Engine.NotDecidedHere(ctx, callerOf(ctx), text)
		}
	}
	return id, err
}

// wholeApproval adds what a person needs to judge it: the effect class and,
// for a device action, the machine's name.
func wholeApproval(tx *store.Tx, a session.Approval) (*apiv1.Approval, error) {
	out := approvalOut(a)
	action, err := tx.Action(a.Action)
	if err != nil {
		return nil, err
	}
	out.Effect = policy.EffectName(action.Effect)
	if !a.DecidedBy.IsZero() {
		if out.DecidedByName, err = personName(tx, a.DecidedBy); err != nil {
			return nil, err
		}
	}
	if id, err := protocol.ParseID[protocol.RunnerKind](a.Destination); err == nil {
		names, err := runnerNames(tx)
		if err != nil {
			return nil, err
		}
		out.RunnerName = names[id]
	}
	return out, nil
}

// personName of a principal; its id, where the caller may not see the name.
func personName(tx *store.Tx, id protocol.PrincipalID) (string, error) {
	p, err := tx.Principal(id)
	if isNotFound(err) {
		return id.String(), nil
	}
	return p.Name, err
}

// denials of a turn's approvals: who said no, by action.
func denials(tx *store.Tx, turn protocol.TurnID) (map[protocol.ActionID]string, error) {
	list, err := tx.ApprovalsOfTurn(turn)
	by := map[protocol.ActionID]string{}
	for _, a := range list {
		if a.State != session.ApprovalDenied {
			continue
		}
		if by[a.Action], err = personName(tx, a.DecidedBy); err != nil {
			return nil, err
		}
	}
	return by, err
}

func (s approvals) GetApproval(ctx context.Context, r *apiv1.GetApprovalRequest) (*apiv1.GetApprovalResponse, error) {
	id, err := s.approvalID(ctx, r.GetApprovalId())
	if err != nil {
		return nil, err
	}
	out, err := s.one(ctx, id)
	if err != nil {
		return nil, err
	}
	return &apiv1.GetApprovalResponse{Approval: out}, nil
}

func (s approvals) one(ctx context.Context, id protocol.ApprovalID) (out *apiv1.Approval, err error) {
	err = s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		a, err := tx.Approval(id)
		if err != nil {
			return err
		}
		out, err = wholeApproval(tx, a)
		return err
	})
	return out, err
}

func (s approvals) DecideApproval(ctx context.Context, r *apiv1.DecideApprovalRequest) (*apiv1.DecideApprovalResponse, error) {
	id, err := s.approvalID(ctx, r.GetApprovalId())
	if err != nil {
		return nil, err
	}
	a, err := s.Engine.DecideApproval(ctx, callerOf(ctx), engine.ApprovalDecision{
		Approval: id, Digest: r.GetDigest(), Approve: r.GetApprove(), Reason: r.GetReason(),
	})
	if err != nil {
		return nil, err
	}
	out, err := s.one(ctx, a.ID)
	if err != nil {
		return nil, err
	}
	return &apiv1.DecideApprovalResponse{Approval: out}, nil
}
