package engine

import (
	"slices"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/placement"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// runnerQuota is what the server's admin set for a machine, narrowed by what its
// owner admits. INV-10.
func (e *Engine) runnerQuota(tenant string, r execution.Runner) policy.Quota {
	owner := policy.Quota{MaxActiveActions: r.Facts.MaxActions, MaxTokensPerDay: r.Facts.MaxTokensPerDay}
	return e.cfg.Quotas.Of(policy.ScopeRunner, tenant+"/"+r.Name).Narrower(owner)
}

// runnerQuotas are those of a fleet, as placement reads them. What a machine holds is
// the fleet's own count; the store is asked for days alone.
func (e *Engine) runnerQuotas(tx *store.Tx, runners []execution.Runner) (map[protocol.RunnerID]placement.Quota, error) {
	out := map[protocol.RunnerID]placement.Quota{}
	names := map[protocol.TenantID]string{}
	for _, r := range runners {
		if _, known := names[r.Tenant]; !known {
			t, err := tx.Tenant(r.Tenant)
			if err != nil {
				return nil, err
			}
			names[r.Tenant] = t.Name
		}
		q := e.runnerQuota(names[r.Tenant], r)
		if !q.Bounds() {
			continue
		}
		one := placement.Quota{Name: names[r.Tenant] + "/" + r.Name, MaxTurns: q.MaxActiveTurns, MaxActions: q.MaxActiveActions}
		if q.Daily() {
			used, err := tx.RunnerConsumption(r.ID)
			if err != nil {
				return nil, err
			}
			if refused := q.Spent(used, tx.Now); refused != nil {
				one.Spent = refused.Text
			}
		}
		out[r.ID] = one
	}
	return out, nil
}

// usesOfRunners are the quotas of the machines that a principal owns or may use.
func (e *Engine) usesOfRunners(tx *store.Tx, c store.Caller) (out []Use, err error) {
	t, err := tx.Tenant(c.Tenant())
	if err != nil {
		return nil, err
	}
	bindings, err := tx.BindingsOf(c.Principal())
	if err != nil {
		return nil, err
	}
	runners, err := tx.ActiveRunners()
	if err != nil {
		return nil, err
	}
	for _, r := range runners {
		mine := r.Owner == c.Principal() || slices.ContainsFunc(bindings, func(b execution.Binding) bool { return b.Runner == r.ID })
		q := e.runnerQuota(t.Name, r)
		if !mine || !q.Bounds() {
			continue
		}
		used, err := tx.RunnerConsumption(r.ID)
		if err != nil {
			return nil, err
		}
		out = append(out, Use{Scope: policy.ScopeRunner, Name: t.Name + "/" + r.Name, Quota: q, Consumed: used})
	}
	return out, nil
}
