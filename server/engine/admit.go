package engine

import (
	"cmp"
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
	// Origin that Subject, the kind of who calls, claims for it; without one it is
	// policy.OriginAPI. Without a Subject the store is asked.
	Origin  policy.Origin
	Subject policy.Subject
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
	digest := messageDigest(p) // before the transaction: others wait for its end
	// It rests on the session's row, which it locks, and on the message's uniqueness;
	// the bounds of principal and tenant may be passed by what is admitted at once.
	update := e.cfg.Store.UpdateGuarded
	if p.Instead {
		update = e.cfg.Store.Update // it ends a turn, with all that works for it
	}
	var a Admission
	var cancelled *turnTx
	p.Origin = cmp.Or(p.Origin, policy.OriginAPI)
	err := update(ctx, c, func(tx *store.Tx) error {
		a, cancelled = Admission{}, nil
		if err := mayClaim(tx, c, p); err != nil {
			return err
		}
		s, err := tx.Standing(p.Session, p.MessageID)
		if err != nil {
			return err
		}
		if !s.Same.IsZero() {
			a.Duplicate = true
			return e.again(tx, s, &a, p, digest)
		}
		agent, err := e.mayQueue(tx, s)
		if err != nil {
			return err
		}
		if err := tieWorkspace(tx, s.Session, p.WorkspaceDigest); err != nil {
			return err
		}
		if p.Instead {
			if cancelled, err = e.cancelActive(tx, p.Session); err != nil {
				return err
			}
		}
		if cancelled != nil {
			a.Replaced = cancelled.turn.ID
			if s, err = tx.Standing(p.Session, p.MessageID); err != nil {
				return err
			}
		}
		if a.Turn, err = e.queue(tx, s, agent, p, digest, a.Replaced); err != nil {
			return err
		}
		a.Position = s.Session.Queued + 1
		a.EstimatedWait, err = e.wait(tx, s, a.Position)
		return err
	})
	if err == nil && cancelled != nil {
		cancelled.committed()
	}
	if err == nil && !a.Duplicate {
		e.cfg.Log.Info("turn queued", "turn", a.Turn.ID, "session", p.Session, "position", a.Position)
	}
	return a, err
}

// mayClaim holds the origin of a turn against what the kind of its caller may claim.
func mayClaim(tx *store.Tx, c store.Caller, p NewTurn) error {
	subject := p.Subject
	if subject == "" {
		who, err := tx.Principal(c.Principal())
		if err != nil {
			return err
		}
		subject = policy.Subject(who.Kind)
	}
	return policy.MayClaim(subject, p.Origin)
}

func (e *Engine) checkPrompt(p NewTurn) error {
	switch {
	case p.MessageID == "" || len(p.MessageID) > maxMessageID:
		return protocol.Errorf(protocol.CodeInvalidArgument, "message_id must have 1 to %d bytes: the client makes one per prompt", maxMessageID)
	case !utf8.ValidString(p.Prompt):
		return protocol.Errorf(protocol.CodeInvalidArgument, "the prompt is not valid UTF-8: send it as UTF-8 text")
	case strings.TrimSpace(p.Prompt) == "":
		return protocol.Errorf(protocol.CodeInvalidArgument, "the prompt is blank: say what the agent should do")
	case len(p.Prompt) > e.cfg.Limits.MaxPrompt:
		return protocol.Errorf(protocol.CodeInvalidArgument, "the prompt has %d bytes, at most %d are taken: put the rest into a file that the agent can read", len(p.Prompt), e.cfg.Limits.MaxPrompt)
	}
	return nil
}

// again answers a duplicate, and cancels nothing; the same id with another body is
// a conflict.
func (e *Engine) again(tx *store.Tx, s store.Standing, a *Admission, p NewTurn, digest string) (err error) {
	if a.Turn, err = tx.Turn(s.Same); err != nil {
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
	if a.Turn.State != session.Queued {
		return nil
	}
	if a.Position, err = tx.QueuePosition(a.Turn.ID); err != nil {
		return err
	}
	a.EstimatedWait, err = e.wait(tx, s, a.Position)
	return err
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

func messageDigest(p NewTurn) string {
	body := map[string]string{"prompt": p.Prompt, "workspace": p.WorkspaceDigest}
	if p.Instead {
		body["instead"] = "true"
	}
	return canonical.Digest(canonical.AppendMap(nil, body))
}

// mayQueue holds session, agent and the bounds of the queue.
func (e *Engine) mayQueue(tx *store.Tx, at store.Standing) (policy.Agent, error) {
	s := at.Session
	if s.State == session.Open && s.LastSeq >= int64(e.cfg.Limits.MaxSessionEvents) {
		return policy.Agent{}, protocol.Errorf(protocol.CodeFailedPrecondition, "session %s has %d events, and at most %d are taken: begin a new one with bivouac chat --new", s.ID, s.LastSeq, e.cfg.Limits.MaxSessionEvents)
	}
	if over := overFor(s, tx.Now); over != "" {
		return policy.Agent{}, protocol.Errorf(protocol.CodeFailedPrecondition, "session %s %s: begin a new one with `bivouac chat --agent %s`", s.ID, over, s.Agent)
	}
	agent, err := e.agentOf(tx, s)
	if err != nil {
		return agent, err
	}
	for _, bound := range []struct {
		what        string
		depth, most int
	}{
		{"this session", at.Session.Queued, agent.Limits.MaxQueued},
		{"you", at.QueuedOfPrincipal, e.cfg.Limits.MaxQueuedPrincipal},
		{"this tenant", at.QueuedOfTenant, e.cfg.Limits.MaxQueuedTenant},
	} {
		if bound.depth >= bound.most {
			return agent, e.queueFull(tx, at, bound.what, bound.depth)
		}
	}
	return agent, e.withinQuotas(tx, at)
}

func (e *Engine) queueFull(tx *store.Tx, at store.Standing, what string, depth int) error {
	typical, err := e.typical(tx, at)
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

func (e *Engine) queue(tx *store.Tx, at store.Standing, agent policy.Agent, p NewTurn, digest string, instead protocol.TurnID) (session.Turn, error) {
	said := map[string]string{"message_id": p.MessageID, "origin": string(p.Origin)}
	if instead != "" {
		said[session.DataInstead] = instead.String()
	}
	return tx.Admit(at, session.Turn{
		ID: newID[protocol.TurnKind](e, tx.Now), MessageID: p.MessageID, MessageDigest: digest, Prompt: p.Prompt, WorkspaceDigest: p.WorkspaceDigest,
		State: session.Queued, Placement: session.Placement(agent.Placement), QueuedAt: tx.Now,
		QueueDeadline: tx.Now.Add(agent.Limits.QueueTTL), TraceParent: p.TraceParent,
	}, session.Event{Type: session.TurnQueued, Payload: p.Prompt, Data: said})
}

// wait before a place in the queue is reached.
func (e *Engine) wait(tx *store.Tx, at store.Standing, position int) (time.Duration, error) {
	ahead := position - 1
	if at.Active {
		ahead++
	}
	if ahead == 0 {
		return 0, nil
	}
	typical, err := e.typical(tx, at)
	return time.Duration(ahead) * typical, err
}

// typical is how long the session's recent turns took.
func (e *Engine) typical(tx *store.Tx, at store.Standing) (time.Duration, error) {
	const unknownYet, sample = 10 * time.Second, 10
	if at.Begun() == 0 {
		return unknownYet, nil // all that it ever had still wait
	}
	n, took, err := tx.Pace(at.Session.ID, at.Begun(), sample)
	if n == 0 || err != nil {
		return unknownYet, err
	}
	return max(took, 100*time.Millisecond), nil
}
