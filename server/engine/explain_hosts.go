package engine

import (
	"bivouac/server/execution"
	"bivouac/server/store"
)

// explainAbsent says why the scheduler that is to run runners for a principal runs none,
// where nothing takes an attempt of that principal. INV-9: it tells the owner alone.
func (e *Engine) explainAbsent(tx *store.Tx, a execution.Attempt, fleet Fleet, x *Explanation) error {
	if e.cfg.Hosts == nil {
		return nil
	}
	p, err := tx.Principal(a.Principal)
	if err != nil {
		return err
	}
	var enrolled []string
	for _, r := range fleet.Runners {
		if r.Owner == p.ID && r.Workload != "" {
			enrolled = append(enrolled, r.Workload)
		}
	}
	said := e.cfg.Hosts.Absent(a.Tenant, enrolled, p.ID.String(), p.Name)
	if said.Text == "" {
		return nil
	}
	x.WaitingFor += "; " + said.Text
	if said.Remedy != "" {
		x.Remedies = append([]string{said.Remedy}, x.Remedies...)
	}
	return nil
}
