package engine

import (
	"context"
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// GrantReach is what a grant lets its agent do, for whoever is about to take it back.
type GrantReach struct {
	Grant policy.Grant
	// Credentials in the order of the grant, with what would go out under each.
	Credentials []CredentialReach
	// Machines that the agent may act on for the principal, by name.
	Machines []string
	// Sessions that would end with it, and how many of them have a turn that runs.
	Sessions, Running int
}

// CredentialReach is where the agent's definition sends one credential.
type CredentialReach struct {
	Name         string
	Tools        []string
	Destinations []string
}

// GrantReach answers from the definition and the bindings as they are now: for the
// grant's own principal, and for admins of its tenant, who see names and counts.
func (e *Engine) GrantReach(ctx context.Context, c store.Caller, id protocol.GrantID) (GrantReach, error) {
	var r GrantReach
	if err := e.cfg.Store.View(ctx, c, func(tx *store.Tx) (err error) {
		r.Grant, err = tx.Grant(id)
		return err
	}); err != nil {
		return r, err
	}
	g := r.Grant
	if g.RevokedAt.IsZero() {
		g.RevokedAt = time.Now() // what would end if it were taken back now
	}
	f := onGrant(g)
	err := e.cfg.Store.View(ctx, f.owner, func(tx *store.Tx) error {
		if err := e.definedReach(tx, &r); err != nil {
			return err
		}
		return f.countStanding(tx, &r)
	})
	return r, err
}

func (e *Engine) definedReach(tx *store.Tx, r *GrantReach) error {
	r.Credentials, r.Machines = nil, nil
	for _, name := range r.Grant.Credentials {
		r.Credentials = append(r.Credentials, CredentialReach{Name: name})
	}
	_, agent, err := e.definition(tx, r.Grant.Tenant, r.Grant.Agent, "")
	if notFound(err) {
		return nil // the agent is gone, and with it every tool
	}
	if err != nil {
		return err
	}
	for i := range r.Credentials {
		r.Credentials[i].fill(agent)
	}
	machines, err := machinesOf(tx, r.Grant.Principal)
	for _, m := range agent.Machines(machines) {
		r.Machines = append(r.Machines, m.Name)
	}
	return err
}

func (c *CredentialReach) fill(agent policy.Agent) {
	for _, t := range agent.Tools {
		if t.Credential() != c.Name {
			continue
		}
		c.Tools = append(c.Tools, t.Ref)
		if to := t.Destination(); to != "" && !slices.Contains(c.Destinations, to) {
			c.Destinations = append(c.Destinations, to)
		}
	}
}

// countStanding counts the sessions that stand on the grant.
func (f foundation) countStanding(tx *store.Tx, r *GrantReach) error {
	r.Sessions, r.Running = 0, 0
	for cursor := ""; ; {
		page, next, err := tx.Sessions(0, cursor)
		if err != nil {
			return err
		}
		under, err := f.carries(tx, page)
		if err != nil {
			return err
		}
		r.Sessions += len(under)
		for _, id := range under {
			_, err := tx.ActiveTurn(id)
			if err == nil {
				r.Running++
			} else if !notFound(err) {
				return err
			}
		}
		if cursor = next; cursor == "" {
			return nil
		}
	}
}
