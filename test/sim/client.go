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

// person asks, repeats, cancels, approves, denies, resolves and takes back, over a
// network that loses their words too, at any of the servers.
type person struct {
	party
	n        int
	me       store.Caller
	id       protocol.PrincipalID
	token    []byte
	links    []*link // to each server
	open     int     // prompts that have no final answer yet
	chats    int     // sessions that were begun
	decided  map[protocol.ApprovalID]bool
	resolved map[protocol.ActionID]bool
	grants   map[string]protocol.GrantID // by agent
}

// say is one call of a person, to a server that knows them by their token.
func say[T any](p *person, name string, do func(ctx context.Context, e *engine.Engine) (T, error), done func(T, error)) {
	h := pick(p.s, p.s.hosts...)
	serve(h, call{over: p.links[h.n], from: &p.party, name: name, timeout: shortCall},
		func(ctx context.Context, e *engine.Engine) (v T, err error) {
			err = p.s.store.View(ctx, store.AsLoop("authenticate"), func(tx *store.Tx) error {
				_, _, err := tx.PrincipalByToken(p.token)
				return err
			})
			if protocol.CodeOf(err) == protocol.CodeNotFound {
				return v, protocol.Errorf(protocol.CodeUnauthenticated, "no principal holds this token")
			} else if err != nil {
				return v, err
			}
			return do(ctx, e)
		}, func(v T, err error) {
			if protocol.CodeOf(err) == protocol.CodeUnauthenticated {
				p.gone()
				return
			}
			done(v, err)
		})
}

// gone is a person who was disabled: nothing of theirs is taken any more.
func (p *person) gone() {
	if p.up {
		p.up, p.open = false, 0
		p.s.note("%s is known no more", p.name)
	}
}

// again reports an answer after which a person asks once more. That nobody knows
// whether it was done is one: all that they ask may be asked twice.
func again(err error) bool {
	return transient(err) || protocol.CodeOf(err) == protocol.CodeOutcomeUnknown
}

// begin lets every chat of the plan begin.
func (p *person) begin() {
	for _, c := range p.s.plan.sessions {
		if c.who == p.n {
			p.talk(c)
		}
	}
	p.after(time.Second, "", p.lookAtApprovals)
	p.after(10*time.Second, "", p.lookAtUnknown)
}

func (p *person) talk(c chat) {
	i := p.chats
	p.chats++
	p.open += len(c.prompts)
	p.after(c.prompts[0].at-p.s.now(), "", func() { p.chat(i, c, 0) })
}

// chat opens a session, until it is open, and sends its prompts.
func (p *person) chat(i int, c chat, tries int) {
	say(p, "open session", func(ctx context.Context, e *engine.Engine) (session.Session, error) {
		return e.CreateSession(ctx, p.me, engine.NewSession{Agent: c.agent, IdempotencyKey: fmt.Sprint(p.name, " chat ", i)})
	}, func(ses session.Session, err error) {
		switch {
		case err != nil && again(err):
			p.after(p.pause(), "", func() { p.chat(i, c, tries) })
			return
		case err != nil && tries < 3: // its grant was taken back
			p.grant(c.agent)
			p.after(5*time.Second, "", func() { p.chat(i, c, tries+1) })
			return
		case err != nil:
			p.open -= len(c.prompts)
			return
		}
		for n, pr := range c.prompts {
			p.after(pr.at-p.s.now(), "", func() { p.submit(ses.ID, fmt.Sprint("m", n), pr.text, true) })
		}
		if p.s.chance(p.s.plan.closes) {
			p.after(p.s.between(0, p.s.plan.heal), "", func() { p.close(ses.ID) })
		}
	})
}

// pause is how long a person waits before they try again.
func (p *person) pause() time.Duration { return p.s.between(200*time.Millisecond, 4*time.Second) }

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
		case err != nil && again(err):
			p.after(p.pause(), "", func() { p.submit(id, message, text, first) })
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
	if ada := s.people[0]; p != ada && s.chance(s.plan.revokes/6) { // while it works, too
		ada.after(s.between(0, 8*time.Second), "", func() { ada.disable(p) })
	}
	if s.chance(s.plan.recreates) { // while it works
		p.after(s.between(0, 15*time.Second), "", func() { p.recreate(pick(s, "assistant", "coder", "coder")) })
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
			p.s.took(policy.FloorInstance, i.ID.String(), i.Generation)
		}
		return i, err
	}, func(policy.Instance, error) {})
}

// lookAtApprovals reads the list of questions and makes up the person's mind
// about each new one.
func (p *person) lookAtApprovals() {
	p.after(p.s.between(time.Second, 4*time.Second), "", p.lookAtApprovals)
	say(p, "", func(ctx context.Context, e *engine.Engine) (list []session.Approval, err error) {
		err = p.s.store.View(ctx, p.me, func(tx *store.Tx) (err error) {
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
		switch {
		case err == nil:
			p.s.decision(d, a)
		case protocol.CodeOf(err) == protocol.CodeOutcomeUnknown && d.Approve:
			p.s.maybe[d.Approval] = true
		}
		return a, err
	}, func(_ session.Approval, err error) {
		if err != nil && again(err) && tries > 0 {
			p.after(p.pause(), "", func() { p.decide(d, tries-1) })
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
