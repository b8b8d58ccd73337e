package api

import (
	"context"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/engine"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
	"bivouac/server/trace"
)

type turns struct{ Config }

func (s turns) SubmitTurn(ctx context.Context, r *apiv1.SubmitTurnRequest) (*apiv1.SubmitTurnResponse, error) {
	id, err := protocol.ParseID[protocol.SessionKind](r.GetSessionId())
	if err != nil {
		return nil, err
	}
	a, err := s.Engine.SubmitTurn(ctx, callerOf(ctx), engine.NewTurn{
		Session: id, MessageID: r.GetMessageId(), Prompt: r.GetPrompt(), WorkspaceDigest: r.GetWorkspaceDigest(),
		TraceParent: traceParent(ctx), Instead: r.GetInstead(),
		Origin: policy.Origin(r.GetOrigin()), Subject: policy.Subject(loginOf(ctx).principal.Kind),
	})
	if err != nil {
		return nil, err
	}
	out := turnOut(a.Turn)
	out.Position = int32(a.Position)
	return &apiv1.SubmitTurnResponse{Turn: out, Duplicate: a.Duplicate, EstimatedWaitMs: a.EstimatedWait.Milliseconds(), ReplacedTurnId: a.Replaced.String()}, nil
}

// traceParent is the caller's trace context (W3C Trace Context); what is none is
// left out.
func traceParent(ctx context.Context) string {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return ""
	}
	header := info.RequestHeader().Get("Traceparent")
	if _, ok := trace.Parse(header); !ok {
		return ""
	}
	return header
}

func (s turns) GetTurn(ctx context.Context, r *apiv1.GetTurnRequest) (*apiv1.GetTurnResponse, error) {
	id, err := protocol.ParseID[protocol.TurnKind](r.GetTurnId())
	if err != nil {
		return nil, err
	}
	var out *apiv1.Turn
	err = s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		t, err := tx.Turn(id)
		if err != nil {
			return err
		}
		out, err = wholeTurn(tx, t)
		return err
	})
	return &apiv1.GetTurnResponse{Turn: out}, err
}

// wholeTurn is a turn with its actions and every attempt made for it.
func wholeTurn(tx *store.Tx, t session.Turn) (*apiv1.Turn, error) {
	out, err := turnInQueue(tx, t)
	if err != nil {
		return nil, err
	}
	attempts, err := tx.AttemptsOfSubject(execution.SubjectTurn, t.ID.String())
	if err != nil {
		return nil, err
	}
	actions, err := tx.ActionsOfTurn(t.ID)
	if err != nil {
		return nil, err
	}
	denied, err := denials(tx, t.ID)
	if err != nil {
		return nil, err
	}
	for _, a := range actions {
		one := actionOut(a)
		one.DeniedBy = denied[a.ID]
		out.Actions = append(out.Actions, one)
		if a.Attempt.IsZero() {
			continue
		}
		more, err := tx.AttemptsOfSubject(execution.SubjectAction, a.ID.String())
		if err != nil {
			return nil, err
		}
		attempts = append(attempts, more...)
	}
	names, err := runnerNames(tx)
	if err != nil {
		return nil, err
	}
	for _, a := range attempts {
		out.Attempts = append(out.Attempts, attemptOut(a, names))
	}
	return out, nil
}

// turnInQueue adds the place of a queued turn.
func turnInQueue(tx *store.Tx, t session.Turn) (*apiv1.Turn, error) {
	out := turnOut(t)
	if t.State == session.Queued {
		n, err := tx.QueuePosition(t.ID)
		if err != nil {
			return nil, err
		}
		out.Position = int32(n)
	}
	return out, nil
}

// runnerNames of the runners that the caller may see.
func runnerNames(tx *store.Tx) (map[protocol.RunnerID]string, error) {
	list, err := tx.ActiveRunners()
	if err != nil {
		return nil, err
	}
	names := make(map[protocol.RunnerID]string, len(list))
	for _, r := range list {
		names[r.ID] = r.Name
	}
	return names, nil
}

func (s turns) ListTurns(ctx context.Context, r *apiv1.ListTurnsRequest) (*apiv1.ListTurnsResponse, error) {
	var id protocol.SessionID
	if r.GetSessionId() != "" {
		var err error
		if id, err = protocol.ParseID[protocol.SessionKind](r.GetSessionId()); err != nil {
			return nil, err
		}
	}
	limit, cursor := pageOf(r.GetPage())
	out := &apiv1.ListTurnsResponse{}
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		out.Turns = nil
		if !id.IsZero() {
			if _, err := tx.Session(id); err != nil {
				return err
			}
		}
		list, next, err := tx.Turns(id, limit, cursor)
		if err != nil {
			return err
		}
		out.NextCursor = next
		for _, t := range list {
			one, err := turnInQueue(tx, t)
			if err != nil {
				return err
			}
			out.Turns = append(out.Turns, one)
		}
		return nil
	})
	return out, err
}

func (s turns) CancelTurn(ctx context.Context, r *apiv1.CancelTurnRequest) (*apiv1.CancelTurnResponse, error) {
	id, err := protocol.ParseID[protocol.TurnKind](r.GetTurnId())
	if err != nil {
		return nil, err
	}
	t, err := s.Engine.CancelTurn(ctx, callerOf(ctx), id)
	if err != nil {
		return nil, err
	}
	return &apiv1.CancelTurnResponse{Turn: turnOut(t)}, nil
}

func (s turns) Explain(ctx context.Context, r *apiv1.ExplainRequest) (*apiv1.ExplainResponse, error) {
	e, err := s.Engine.Explain(ctx, callerOf(ctx), r.GetId())
	if err != nil {
		return nil, err
	}
	out := &apiv1.ExplainResponse{
		State: e.State, WaitedMs: e.Waited.Milliseconds(), WaitingFor: e.WaitingFor, Remedies: e.Remedies, Registries: registriesOut(e.Registries),
	}
	for _, p := range e.Pastes {
		out.Pastes = append(out.Pastes, &apiv1.Paste{Where: p.Where, Text: p.Text})
	}
	for _, v := range e.Runners {
		out.Runners = append(out.Runners, &apiv1.RunnerVerdict{
			RunnerId: v.Runner.String(), Name: v.Name, Eligible: v.Eligible, Reasons: v.Reasons,
		})
	}
	return out, nil
}

func (s turns) ListUnknown(ctx context.Context, r *apiv1.ListUnknownRequest) (*apiv1.ListUnknownResponse, error) {
	list, err := s.Engine.ListUnknown(ctx, callerOf(ctx), r.GetIncludeResolved())
	if err != nil {
		return nil, err
	}
	out := &apiv1.ListUnknownResponse{}
	for _, a := range list {
		out.Actions = append(out.Actions, unknownOut(a))
	}
	return out, nil
}

func (s turns) ResolveUnknown(ctx context.Context, r *apiv1.ResolveUnknownRequest) (*apiv1.ResolveUnknownResponse, error) {
	id, err := protocol.ParseID[protocol.ActionKind](r.GetActionId())
	if err != nil {
		return nil, err
	}
	a, err := s.Engine.ResolveUnknown(ctx, callerOf(ctx), engine.Resolution{Action: id, Verdict: r.GetResolution(), Note: r.GetNote()})
	if err != nil {
		return nil, err
	}
	return &apiv1.ResolveUnknownResponse{Action: unknownOut(a)}, nil
}
