package api

import (
	"encoding/json"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/api/apiv1"
	"bivouac/server/engine"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
)

// at is an instant on the wire; the zero time is absent.
func at(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func sessionOut(s session.Session) *apiv1.Session {
	return &apiv1.Session{
		Id: s.ID.String(), Agent: s.Agent, AgentDigest: s.AgentDigest, State: string(s.State),
		DataBoundary: s.DataBoundary, CreatedAt: at(s.CreatedAt), ExpiresAt: at(s.ExpiresAt), LastSeq: s.LastSeq,
	}
}

func turnOut(t session.Turn) *apiv1.Turn {
	out := &apiv1.Turn{
		Id: t.ID.String(), SessionId: t.Session.String(), State: string(t.State), Reason: t.Reason,
		Message: t.Message, Prompt: t.Prompt, Answer: t.Answer, Placement: string(t.Placement),
		WorkspaceDigest: t.WorkspaceDigest, InputTokens: t.InputTokens, OutputTokens: t.OutputTokens,
		CostMicroUsd: t.CostMicroUSD, QueuedAt: at(t.QueuedAt), ActivatedAt: at(t.ActivatedAt),
		EndedAt: at(t.EndedAt), MessageId: t.MessageID, UsageFinal: !t.UsageSettledAt.IsZero(), ModelCalls: t.ModelCalls,
	}
	if t.State == session.Completed {
		// A patch of a turn that goes on is a checkpoint, not a result.
		out.PatchDigest = t.PatchDigest
	}
	var snap policy.Snapshot
	if len(t.Snapshot) > 0 && json.Unmarshal(t.Snapshot, &snap) == nil {
		out.AgentDigest = snap.AgentDigest
	}
	return out
}

func actionOut(a session.Action) *apiv1.Action {
	arguments, digest := engine.ShownArguments(a)
	out := &apiv1.Action{
		Id: a.ID.String(), TurnId: a.Turn.String(), Tool: a.Tool, State: string(a.State),
		Effect: policy.EffectName(a.Effect), Recovery: policy.RecoveryName(a.Recovery), Arguments: arguments,
		ArgumentsDigest: digest, Reason: a.Code, AttemptId: a.Attempt.String(),
		ApprovalId: a.Approval.String(), IntentAt: at(a.IntentAt), OutcomeAt: at(a.OutcomeAt),
	}
	var r runtimev1.ToolResult
	if len(a.Result) > 0 && proto.Unmarshal(a.Result, &r) == nil {
		out.Result = r.GetText()
	}
	return out
}

func unknownOut(a session.Action) *apiv1.UnknownAction {
	return &apiv1.UnknownAction{
		Action: actionOut(a), SessionId: a.Session.String(), Evidence: a.Evidence, Resolution: a.Resolution,
		ResolvedBy: a.ResolvedBy.String(), ResolvedAt: at(a.ResolvedAt), ResolutionNote: a.ResolutionNote,
	}
}

func eventOut(e session.Stored) (*apiv1.Event, error) {
	data := []byte("{}")
	if len(e.Data) > 0 {
		var err error
		if data, err = json.Marshal(e.Data); err != nil {
			return nil, err
		}
	}
	return &apiv1.Event{
		SessionId: e.Session.String(), Seq: e.Seq, At: at(e.At), Type: string(e.Type), TurnId: e.Turn.String(),
		ActionId: e.Action.String(), AttemptId: e.Attempt.String(), ApprovalId: e.Approval.String(),
		Data: string(data), Payload: e.Payload, Stored: e.Bytes, PrevHash: e.PrevHash, Hash: e.Hash,
	}, nil
}

func approvalOut(a session.Approval) *apiv1.Approval {
	return &apiv1.Approval{
		Id: a.ID.String(), TurnId: a.Turn.String(), SessionId: a.Session.String(), ActionId: a.Action.String(),
		State: string(a.State), Tool: a.Tool, Destination: a.Destination, Arguments: a.Arguments, Digest: a.Digest,
		ExpiresAt: at(a.ExpiresAt), CreatedAt: at(a.CreatedAt), DecidedBy: a.DecidedBy.String(), Reason: a.Reason,
	}
}

func attemptOut(a execution.Attempt, names map[protocol.RunnerID]string) *apiv1.Attempt {
	out := &apiv1.Attempt{
		Id: a.ID.String(), SubjectKind: string(a.SubjectKind), State: string(a.State),
		RunnerId: a.Runner.String(), RunnerName: names[a.Runner], Reason: a.Reason,
	}
	if a.Fence != 0 {
		out.Fence = a.Fence.String()
	}
	return out
}

func principalOut(p policy.Principal, t policy.Tenant) *apiv1.Principal {
	return &apiv1.Principal{
		Id: p.ID.String(), TenantId: p.Tenant.String(), TenantName: t.Name, Name: p.Name, Kind: p.Kind,
		Admin: p.Admin, Disabled: !p.DisabledAt.IsZero(), CreatedAt: at(p.CreatedAt),
	}
}

func grantOut(g policy.Grant, name string) *apiv1.Grant {
	state := "ACTIVE"
	if !g.RevokedAt.IsZero() {
		state = "REVOKED"
	}
	return &apiv1.Grant{
		Id: g.ID.String(), Agent: g.Agent, PrincipalId: g.Principal.String(), PrincipalName: name, State: state,
		Credentials: g.Credentials, CreatedAt: at(g.CreatedAt), RevokedAt: at(g.RevokedAt), RevokedWhy: g.RevokedWhy,
		RotatedAt: at(g.RotatedAt), RotatingSince: at(g.RotationAt), Pending: g.Pending(), ProvenAt: at(g.ProvenAt),
	}
}

func bindingOut(b execution.Binding, name string) *apiv1.Binding {
	return &apiv1.Binding{
		Id: b.ID.String(), PrincipalId: b.Principal.String(), PrincipalName: name,
		RunnerId: b.Runner.String(), Actions: b.Actions,
	}
}
