package sim

import (
	"context"
	"fmt"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// person asks, repeats, cancels, approves, denies and resolves, over a network
// that loses their words too.
type person struct {
	party
	me       store.Caller
	id       protocol.PrincipalID
	toServer *link
	open     int // prompts that have no final answer yet
	decided  map[protocol.ApprovalID]bool
	resolved map[protocol.ActionID]bool
}

// say is one call of a person.
func say[T any](p *person, name string, do func(ctx context.Context, e *engine.Engine) (T, error), done func(T, error)) {
	serve(p.s, call{over: p.toServer, from: &p.party, name: name, timeout: shortCall}, do, done)
}

// begin lets every chat of the plan begin.
func (p *person) begin() {
	for i, c := range p.s.plan.sessions {
		p.open += len(c.prompts)
		p.after(c.prompts[0].at, "", func() { p.chat(i, c) })
	}
	p.after(time.Second, "", p.lookAtApprovals)
	p.after(10*time.Second, "", p.lookAtUnknown)
}

// chat opens a session, until it is open, and sends its prompts.
func (p *person) chat(i int, c chat) {
	say(p, "open session", func(ctx context.Context, e *engine.Engine) (session.Session, error) {
		return e.CreateSession(ctx, p.me, engine.NewSession{Agent: c.agent, IdempotencyKey: fmt.Sprint("chat ", i)})
	}, func(ses session.Session, err error) {
		if err != nil {
			p.after(p.again(), "", func() { p.chat(i, c) })
			return
		}
		for n, pr := range c.prompts {
			p.after(pr.at-p.s.now(), "", func() { p.submit(ses.ID, fmt.Sprint("m", n), pr.text, true) })
		}
		if p.s.chance(p.s.plan.closes) {
			p.after(p.s.between(0, p.s.plan.heal), "", func() { p.close(ses.ID) })
		}
		if p.s.chance(p.s.plan.recreates) {
			p.after(p.s.between(0, p.s.plan.heal), "", func() { p.recreate(c.agent) })
		}
	})
}

// again is how long a person waits before they try again.
func (p *person) again() time.Duration { return p.s.between(200*time.Millisecond, 4*time.Second) }

// submit sends a prompt until the server has it; the message id stays the same.
// INV-15.
func (p *person) submit(id protocol.SessionID, message, text string, first bool) {
	say(p, "submit "+message, func(ctx context.Context, e *engine.Engine) (engine.Admission, error) {
		a, err := e.SubmitTurn(ctx, p.me, engine.NewTurn{Session: id, MessageID: message, Prompt: text})
		if err == nil {
			p.s.admission(id, message, text, a)
		}
		return a, err
	}, func(a engine.Admission, err error) {
		switch {
		case err != nil && (transient(err)):
			p.after(p.again(), "", func() { p.submit(id, message, text, first) })
		case first:
			p.open--
			if err == nil {
				p.follow(id, message, text, a.Turn.ID)
			}
		}
	})
}

// follow is what a person does about a turn that was taken.
func (p *person) follow(id protocol.SessionID, message, text string, turn protocol.TurnID) {
	s := p.s
	if s.chance(0.2) {
		p.after(s.between(0, 30*time.Second), "", func() { p.submit(id, message, text, false) })
	}
	if s.chance(0.05) {
		p.after(s.between(0, 30*time.Second), "", func() { p.submit(id, message, text+" ", false) })
	}
	if s.chance(s.plan.cancels) {
		p.after(s.between(0, 40*time.Second), "", func() { p.cancel(turn) })
	}
}

func (p *person) cancel(id protocol.TurnID) {
	say(p, "cancel "+id.String(), func(ctx context.Context, e *engine.Engine) (session.Turn, error) {
		return e.CancelTurn(ctx, p.me, id)
	}, func(t session.Turn, err error) {
		if err == nil && !t.State.Terminal() {
			p.s.violate("cancel of %s was answered, and it is %s", id, t.State)
		}
	})
}

func (p *person) close(id protocol.SessionID) {
	say(p, "close session", func(ctx context.Context, e *engine.Engine) (session.Session, error) {
		return e.CloseSession(ctx, p.me, id)
	}, func(session.Session, error) {})
}

// recreate raises the generation of an agent's instance. INV-16.
func (p *person) recreate(agent string) {
	say(p, "recreate "+agent, func(ctx context.Context, e *engine.Engine) (policy.Instance, error) {
		i, err := e.RecreateInstance(ctx, p.me, agent)
		if err == nil {
			p.s.recreated(i)
		}
		return i, err
	}, func(policy.Instance, error) {})
}

// lookAtApprovals reads the list of questions and makes up the person's mind
// about each new one.
func (p *person) lookAtApprovals() {
	p.after(p.s.between(time.Second, 4*time.Second), "", p.lookAtApprovals)
	say(p, "", func(ctx context.Context, e *engine.Engine) (list []session.Approval, err error) {
		err = e.Store.View(ctx, p.me, func(tx *store.Tx) (err error) {
			list, err = tx.Approvals(false)
			return err
		})
		return list, err
	}, func(list []session.Approval, err error) {
		for _, a := range list {
			if !p.decided[a.ID] {
				p.decided[a.ID] = true
				p.consider(a)
			}
		}
	})
}

func (p *person) consider(a session.Approval) {
	s := p.s
	if !s.healed && s.chance(0.2) {
		delete(p.decided, a.ID)
		return // not now; they may see it again
	}
	yes, later := s.chance(0.75), s.between(0, 20*time.Second)
	d := engine.ApprovalDecision{Approval: a.ID, Digest: a.Digest, Approve: yes, Reason: "as planned"}
	if s.chance(0.05) {
		wrong := d
		wrong.Digest = "sha256:of-something-else"
		p.after(later/2, "", func() { p.decide(wrong, 0) })
	}
	p.after(later, "", func() { p.decide(d, 5) })
	if s.chance(0.2) {
		p.after(later+s.between(0, 5*time.Second), "", func() { p.decide(d, 0) })
	}
	if s.chance(0.1) {
		d.Approve = !yes
		p.after(later+s.between(0, 5*time.Second), "", func() { p.decide(d, 0) })
	}
}

func (p *person) decide(d engine.ApprovalDecision, tries int) {
	name := "deny "
	if d.Approve {
		name = "approve "
	}
	say(p, name+d.Approval.String(), func(ctx context.Context, e *engine.Engine) (session.Approval, error) {
		a, err := e.DecideApproval(ctx, p.me, d)
		if err == nil {
			p.s.decision(d, a)
		}
		return a, err
	}, func(_ session.Approval, err error) {
		if err != nil && transient(err) && tries > 0 {
			p.after(p.again(), "", func() { p.decide(d, tries-1) })
		}
	})
}

// lookAtUnknown reads the unknown inbox and resolves some of it.
func (p *person) lookAtUnknown() {
	p.after(10*time.Second, "", p.lookAtUnknown)
	say(p, "", func(ctx context.Context, e *engine.Engine) ([]session.Action, error) {
		return e.ListUnknown(ctx, p.me, false)
	}, func(list []session.Action, err error) {
		for _, a := range list {
			if p.resolved[a.ID] || !p.s.chance(0.3) {
				continue
			}
			p.resolved[a.ID] = true
			say(p, "resolve "+a.ID.String(), func(ctx context.Context, e *engine.Engine) (session.Action, error) {
				return e.ResolveUnknown(ctx, p.me, engine.Resolution{Action: a.ID, Verdict: "accepted"})
			}, func(session.Action, error) {})
		}
	})
}
