package engine

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/planted"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// NewTurn is one prompt.
type NewTurn struct {
	Session   protocol.SessionID
	MessageID string // unique within the session; the client makes it
	Prompt    string
	// WorkspaceDigest names an artifact of the caller, or nothing.
	WorkspaceDigest string
	TraceParent     string
	// Instead cancels the session's active turn in the transaction that queues this
	// one. Nothing else of a session does: a second prompt waits for the first.
	Instead bool
}

// Admission is the durable answer to a prompt.
type Admission struct {
	Turn      session.Turn
	Duplicate bool
	// Position is 1 for the turn that is activated next; zero when it is not queued.
	Position int
	// EstimatedWait before activation, from recent turns.
	EstimatedWait time.Duration
	// Replaced is the turn that was cancelled for this one; empty when none was active.
	Replaced protocol.TurnID
}

// maxMessageID bounds the client's own id of a message.
const maxMessageID = 200

// SubmitTurn queues a prompt, durably before the answer. INV-15: a duplicate
// message returns its turn, whatever its state.
func (e *Engine) SubmitTurn(ctx context.Context, c store.Caller, p NewTurn) (Admission, error) {
	if err := e.checkPrompt(p); err != nil {
		return Admission{}, err
	}
	// It rests on the session's row, which it locks, and on the message's uniqueness;
	// the bounds of principal and tenant may be passed by what is admitted at once.
	update := e.Store.UpdateGuarded
	if p.Instead {
		update = e.Store.Update // it ends a turn, with all that works for it
	}
	var a Admission
	var cancelled *turnTx
	err := update(ctx, c, func(tx *store.Tx) error {
		a, cancelled = Admission{}, nil
		s, err := tx.Session(p.Session)
		if err != nil {
			return err
		}
		if a.Turn, err = tx.TurnByMessage(s.ID, p.MessageID); err == nil {
			a.Duplicate = true
			return e.again(tx, &a, p)
		} else if !notFound(err) {
			return err
		}
		agent, err := e.mayQueue(tx, s)
		if err != nil {
			return err
		}
		if err := tieWorkspace(tx, s, p.WorkspaceDigest); err != nil {
			return err
		}
		if p.Instead {
			if cancelled, err = e.cancelActive(tx, s.ID); err != nil {
				return err
			}
		}
		if cancelled != nil {
			a.Replaced = cancelled.turn.ID
		}
		if a.Turn, err = e.queue(tx, s, agent, p, a.Replaced); err != nil {
			return err
		}
		return e.position(tx, &a)
	})
	if err == nil && cancelled != nil {
		cancelled.committed()
	}
	if err == nil && !a.Duplicate {
		e.Log.Info("turn queued", "turn", a.Turn.ID, "session", p.Session, "position", a.Position)
	}
	return a, err
}

func (e *Engine) checkPrompt(p NewTurn) error {
	switch {
	case p.MessageID == "" || len(p.MessageID) > maxMessageID:
		return protocol.Errorf(protocol.CodeInvalidArgument, "message_id must have 1 to %d bytes: the client makes one per prompt", maxMessageID)
	case !utf8.ValidString(p.Prompt):
		return protocol.Errorf(protocol.CodeInvalidArgument, "the prompt is not valid UTF-8: send it as UTF-8 text")
	case strings.TrimSpace(p.Prompt) == "":
		return protocol.Errorf(protocol.CodeInvalidArgument, "the prompt is blank: say what the agent should do")
	case len(p.Prompt) > e.Limits.MaxPrompt:
		return protocol.Errorf(protocol.CodeInvalidArgument, "the prompt has %d bytes, at most %d are taken: put the rest into a file that the agent can read", len(p.Prompt), e.Limits.MaxPrompt)
	}
	return nil
}

// again answers a duplicate, and cancels nothing; the same id with another body is
// a conflict.
func (e *Engine) again(tx *store.Tx, a *Admission, p NewTurn) error {
	digest, err := messageDigest(p)
	if err != nil {
		return err
	}
	if digest != a.Turn.MessageDigest && planted.Chosen != planted.Duplicate {
		return protocol.Errorf(protocol.CodeConflict, "message %q was sent before with another prompt or workspace (turn %s), or only one of the two replaces a turn: use a new message id", p.MessageID, a.Turn.ID)
	}
	if p.Instead {
		if a.Replaced, err = replacedBy(tx, a.Turn.ID); err != nil {
			return err
		}
	}
	return e.position(tx, a)
}

// replacedBy is the turn that was cancelled for another, as that one's first event
// tells it.
func replacedBy(tx *store.Tx, id protocol.TurnID) (protocol.TurnID, error) {
	events, err := tx.EventsOfTurn(id, 0, 1)
	if err != nil || len(events) == 0 {
		return "", err
	}
	return protocol.TurnID(events[0].Data[session.DataInstead]), nil
}

func messageDigest(p NewTurn) (string, error) {
	body := map[string]string{"prompt": p.Prompt, "workspace": p.WorkspaceDigest}
	if p.Instead {
		body["instead"] = "true"
	}
	b, err := canonical.Marshal(body)
	return canonical.Digest(b), err
}

// mayQueue holds session, agent and the bounds of the queue.
func (e *Engine) mayQueue(tx *store.Tx, s session.Session) (policy.Agent, error) {
	if s.State == session.Open && s.LastSeq >= int64(e.Limits.MaxSessionEvents) {
		return policy.Agent{}, protocol.Errorf(protocol.CodeFailedPrecondition, "session %s has %d events, and at most %d are taken: begin a new one with bivouac chat --new", s.ID, s.LastSeq, e.Limits.MaxSessionEvents)
	}
	if over := overFor(s, tx.Now); over != "" {
		return policy.Agent{}, protocol.Errorf(protocol.CodeFailedPrecondition, "session %s %s: begin a new one with `bivouac chat --agent %s`", s.ID, over, s.Agent)
	}
	_, agent, err := e.definition(tx, s.Tenant, s.Agent, s.AgentDigest)
	if err != nil {
		return agent, err
	}
	for _, bound := range []struct {
		what      string
		most      int
		tenant    protocol.TenantID
		principal protocol.PrincipalID
		session   protocol.SessionID
	}{
		{"this session", agent.Limits.MaxQueued, s.Tenant, s.Principal, s.ID},
		{"you", e.Limits.MaxQueuedPrincipal, s.Tenant, s.Principal, ""},
		{"this tenant", e.Limits.MaxQueuedTenant, s.Tenant, "", ""},
	} {
		depth, err := tx.QueueDepth(bound.tenant, bound.principal, bound.session)
		if err != nil {
			return agent, err
		}
		if depth >= bound.most {
			return agent, e.queueFull(tx, s, bound.what, depth)
		}
	}
	return agent, e.withinQuotas(tx, s)
}

func (e *Engine) queueFull(tx *store.Tx, s session.Session, what string, depth int) error {
	typical, err := e.typical(tx, s.ID)
	if err != nil {
		return err
	}
	full := protocol.Errorf(protocol.CodeQueueFull, "%d turns wait for %s, which is the limit: try again later, or look at them with `bivouac turns` and stop one with `bivouac cancel`", depth, what)
	full.RetryAfter = typical
	return full
}

// tieWorkspace checks that the artifact is the caller's own, and ties it to the
// session that uses it.
func tieWorkspace(tx *store.Tx, s session.Session, digest string) error {
	if digest == "" {
		return nil
	}
	a, err := tx.Artifact(digest)
	if err != nil {
		return err
	}
	if a.Principal != s.Principal {
		return protocol.Errorf(protocol.CodeNotFound, "artifact %s not found", digest)
	}
	a.Session = s.ID
	_, err = tx.PutArtifact(a)
	return err
}

func (e *Engine) queue(tx *store.Tx, s session.Session, agent policy.Agent, p NewTurn, instead protocol.TurnID) (session.Turn, error) {
	digest, err := messageDigest(p)
	if err != nil {
		return session.Turn{}, err
	}
	t, err := tx.InsertTurn(session.Turn{
		ID: newID[protocol.TurnKind](e, tx.Now), Session: s.ID, Tenant: s.Tenant, Principal: s.Principal,
		MessageID: p.MessageID, MessageDigest: digest, Prompt: p.Prompt, WorkspaceDigest: p.WorkspaceDigest,
		State: session.Queued, Placement: session.Placement(agent.Placement), QueuedAt: tx.Now,
		QueueDeadline: tx.Now.Add(agent.Limits.QueueTTL), TraceParent: p.TraceParent,
	})
	if err != nil {
		return t, err
	}
	s.LastActiveAt = tx.Now
	if err := tx.SaveSession(s, s.State); err != nil {
		return t, err
	}
	said := map[string]string{"message_id": p.MessageID}
	if instead != "" {
		said[session.DataInstead] = instead.String()
	}
	_, err = tx.AppendEvents(s.ID, session.Event{Type: session.TurnQueued, Turn: t.ID, Payload: p.Prompt, Data: said})
	return t, err
}

// position says where in the queue the turn is and how long that may take.
func (e *Engine) position(tx *store.Tx, a *Admission) error {
	if a.Turn.State != session.Queued {
		return nil
	}
	position, err := tx.QueuePosition(a.Turn.ID)
	if err != nil {
		return err
	}
	a.Position = position
	typical, err := e.typical(tx, a.Turn.Session)
	if err != nil {
		return err
	}
	ahead := position - 1
	if _, err := tx.ActiveTurn(a.Turn.Session); err == nil {
		ahead++
	} else if !notFound(err) {
		return err
	}
	a.EstimatedWait = time.Duration(ahead) * typical
	return nil
}

// typical is how long the session's recent turns took.
func (e *Engine) typical(tx *store.Tx, id protocol.SessionID) (time.Duration, error) {
	const unknownYet, sample = 10 * time.Second, 10
	turns, _, err := tx.Turns(id, sample, "")
	var sum time.Duration
	n := time.Duration(0)
	for _, t := range turns {
		if t.State.Terminal() && !t.ActivatedAt.IsZero() {
			sum, n = sum+t.EndedAt.Sub(t.ActivatedAt), n+1
		}
	}
	if n == 0 || err != nil {
		return unknownYet, err
	}
	return max(sum/n, 100*time.Millisecond), nil
}
