package engine

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// byOwner is the owner of a machine, in edge.hcl.
const byOwner = "owner"

// EffectiveRegistry is a destination that sandboxes of an agent read packages from,
// and what becomes of a request there now.
type EffectiveRegistry struct {
	Destination, URL, Protocol, Verbs string
	// By and Why say what refuses it; empty: it is open.
	By, Why string
	// Intention is the path entry that decides, whichever way.
	Intention string
}

// located is where an entry lies, in what the paths say of it.
var located = regexp.MustCompile(`[^\s:]*/([^/\s:]+:\d+)`)

// decidedBy is the path entry that decides, as the caller may see it: only who manages
// the tenant is told where the broker's files lie.
func decidedBy(c store.Caller, r *brokerv1.Reach) string {
	if c.Admin() {
		return r.GetIntention()
	}
	return located.ReplaceAllString(r.GetIntention(), "$1")
}

// registryOf reads what the broker says of one.
func registryOf(c store.Caller, name string, r *brokerv1.Reach) EffectiveRegistry {
	out := EffectiveRegistry{Destination: name, URL: r.GetUrl(), Protocol: r.GetProtocol(), Verbs: r.GetVerbs(), Intention: decidedBy(c, r)}
	if !r.GetAdmitted() {
		out.By, out.Why = kind(r), r.GetReason()
	}
	return out
}

// refusedByOwners adds the word of the owners: where every machine refuses, there is
// no way, whatever the broker says; where some do, turns go to the others.
func refusedByOwners(all []EffectiveRegistry, machines []bound, agent policy.Agent) {
	var open, closed []string
	for _, b := range machines {
		if b.runner.State != execution.RunnerActive || !agent.AdmitsRunner(b.runner.Name, b.runner.ID) || !b.binding.Allows(execution.ActionTurn) {
			continue
		}
		if b.runner.Facts.RefusesEgress {
			closed = append(closed, b.runner.Name)
		} else {
			open = append(open, b.runner.Name)
		}
	}
	if len(closed) == 0 {
		return
	}
	slices.Sort(closed)
	for i := range all {
		r := &all[i]
		switch {
		case len(open) == 0 && r.By == "":
			r.By, r.Why = byOwner, fmt.Sprintf("no sandbox on %s may read packages: package_egress = false in edge.hcl there", strings.Join(closed, ", "))
		case r.By == "":
			r.Why = "not on " + strings.Join(closed, ", ") + ", whose owner refuses it: such turns go elsewhere"
		}
	}
}

// egressOf asks the broker what sandboxes of a turn may read packages from.
func (e *Engine) egressOf(ctx context.Context, c store.Caller, t session.Turn) ([]EffectiveRegistry, error) {
	var f effective
	var names []string
	err := e.cfg.Store.View(ctx, c, func(tx *store.Tx) (err error) {
		s, err := tx.Session(t.Session)
		if err != nil {
			return err
		}
		if _, f.agent, err = e.definition(tx, t.Tenant, s.Agent, s.AgentDigest); err != nil {
			return err
		}
		if names = f.agent.Egress; len(names) == 0 {
			return nil
		}
		if f.tenant, err = tx.Tenant(t.Tenant); err != nil {
			return err
		}
		f.bound, err = boundTo(tx, t.Principal)
		return err
	})
	if err != nil || len(names) == 0 {
		return nil, err
	}
	resp, err := e.cfg.Broker.Reach(ctx, &brokerv1.ReachRequest{TenantId: f.tenant.ID.String(), TenantName: f.tenant.Name, Agent: f.agent.Name,
		DataBoundary: f.agent.DataBoundary, Egress: names})
	return f.registries(c, resp, err), nil
}

// registries of the definition, as the broker and the machines' owners have them.
func (f effective) registries(c store.Caller, resp *brokerv1.ReachResponse, err error) (out []EffectiveRegistry) {
	for i, name := range f.agent.Egress {
		said := unanswered(err)
		if err == nil && i < len(resp.GetEgress()) {
			said = resp.GetEgress()[i]
		}
		out = append(out, registryOf(c, name, said))
	}
	refusedByOwners(out, f.bound, f.agent)
	return out
}
