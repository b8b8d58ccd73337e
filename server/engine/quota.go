package engine

import (
	"context"
	"fmt"
	"slices"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Use is one quota that a principal runs into, with what is used of it. A zero
// quota bounds nothing.
type Use struct {
	Scope    string // of policy
	Name     string // "acme", "acme/ada", "acme/assistant"
	Quota    policy.Quota
	Consumed policy.Consumption
}

// quotasOf are the quotas over a principal and an agent, with what is used.
// Without an agent there is none of an agent.
func (e *Engine) quotasOf(tx *store.Tx, tenant protocol.TenantID, principal protocol.PrincipalID, agent string) ([]Use, error) {
	if !e.cfg.Quotas.Any() {
		return nil, nil
	}
	t, err := tx.Tenant(tenant)
	if err != nil {
		return nil, err
	}
	p, err := tx.Principal(principal)
	if err != nil {
		return nil, err
	}
	var out []Use
	for _, one := range []struct {
		scope, name string
		of          policy.Scope
	}{
		{policy.ScopePrincipal, t.Name + "/" + p.Name, policy.Scope{Tenant: tenant, Principal: principal}},
		{policy.ScopeAgent, t.Name + "/" + agent, policy.Scope{Tenant: tenant, Agent: agent}},
		{policy.ScopeTenant, t.Name, policy.Scope{Tenant: tenant}},
	} {
		q := e.cfg.Quotas.Of(one.scope, one.name)
		if !q.Bounds() || one.scope == policy.ScopeAgent && agent == "" {
			continue
		}
		used, err := tx.Consumption(one.of)
		if err != nil {
			return nil, err
		}
		out = append(out, Use{Scope: one.scope, Name: one.name, Quota: q, Consumed: used})
	}
	return out, nil
}

// QuotasOf shows a principal its quotas, and those of the machines that it may use; an
// agent's, where it is named.
func (e *Engine) QuotasOf(ctx context.Context, c store.Caller, agent string) (uses []Use, err error) {
	err = e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		if agent != "" {
			if _, _, err := e.definition(tx, c.Tenant(), agent, ""); err != nil {
				return err
			}
		}
		if uses, err = e.quotasOf(tx, c.Tenant(), c.Principal(), agent); err != nil {
			return err
		}
		of, err := e.usesOfRunners(tx, c)
		uses = append(uses, of...)
		return err
	})
	return uses, err
}

// withinQuotas refuses a prompt that a quota has no room for.
func (e *Engine) withinQuotas(tx *store.Tx, at store.Standing) error {
	uses, err := e.quotasOf(tx, at.Session.Tenant, at.Session.Principal, at.Session.Agent)
	if err != nil {
		return err
	}
	for _, u := range uses {
		r := u.Quota.Admits(u.Consumed, tx.Now)
		if r == nil {
			continue
		}
		refused := protocol.Errorf(r.Code, "the quota of %s %s has no room: %s; `bivouac quota` shows it, and server.hcl sets it", u.Scope, u.Name, r.Text)
		if refused.RetryAfter = r.RetryAfter; r.RetryAfter == 0 {
			if refused.RetryAfter, err = e.typical(tx, at); err != nil {
				return err
			}
		}
		return refused
	}
	return nil
}

// heldBy says which quota keeps a turn of the queue from beginning; empty: none.
func (e *Engine) heldBy(uses []Use, tx *store.Tx) string {
	for _, u := range uses {
		if r := u.Quota.Activates(u.Consumed, tx.Now); r != nil {
			return fmt.Sprintf("the quota of %s %s: %s", u.Scope, u.Name, r.Text)
		}
	}
	return ""
}

// withinActive are the turns of the queue that quotas let begin, fair across
// tenants: one that is held back holds nobody else up. The transaction that
// activates asks again.
func (e *Engine) withinActive(tx *store.Tx) ([]session.Turn, error) {
	heads, err := tx.Activatable(0)
	if err != nil {
		return nil, err
	}
	type user struct {
		principal protocol.PrincipalID
		agent     string
	}
	read := map[user][]Use{}
	begun := map[string]int{} // in this pass, by scope and name
	var out []session.Turn
	for _, t := range heads {
		s, err := tx.Session(t.Session)
		if err != nil {
			return nil, err
		}
		of := user{t.Principal, s.Agent}
		if _, known := read[of]; !known {
			if read[of], err = e.quotasOf(tx, t.Tenant, t.Principal, s.Agent); err != nil {
				return nil, err
			}
		}
		uses := slices.Clone(read[of])
		for i, u := range uses {
			uses[i].Consumed.Active += begun[u.Scope+" "+u.Name]
		}
		if e.heldBy(uses, tx) != "" {
			continue
		}
		for _, u := range uses {
			begun[u.Scope+" "+u.Name]++
		}
		if out = append(out, t); len(out) == activateBatch {
			break
		}
	}
	return out, nil
}

// mayBegin leaves a turn in the queue that a quota has no room for, and narrows
// what it may use to what is left of the day. INV-10, INV-19.
func (w *turnTx) mayBegin(s session.Session, l *policy.Limits) error {
	uses, err := w.e.quotasOf(w.tx, s.Tenant, s.Principal, s.Agent)
	if err != nil {
		return err
	}
	if why := w.e.heldBy(uses, w.tx); why != "" {
		return protocol.Errorf(protocol.CodeConflict, "turn %s waits for %s", w.turn.ID, why)
	}
	for _, u := range uses {
		u.Quota.Narrow(l, u.Consumed)
	}
	return nil
}

func tokensOf(t session.Turn) int64 { return t.InputTokens + t.OutputTokens }

// count adds what the turn used since the last write to its day.
func (w *turnTx) count() error {
	now := tokensOf(w.turn)
	if now <= w.counted {
		return nil
	}
	err := w.tx.AddUsage(w.turn.ID, now-w.counted)
	w.counted = now
	return err
}
