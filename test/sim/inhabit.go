package sim

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/engine"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// inhabit makes the people, the agents and the machines while nothing fails: two
// machines of the first person, one of the second.
func (s *Sim) inhabit() error {
	ada, err := s.newPerson("local", "ada", true)
	if err != nil {
		return err
	}
	bob, err := s.newPerson("local", "bob", false)
	if err != nil {
		return err
	}
	eve, err := s.newPerson("other", "eve", true)
	if err != nil {
		return err
	}
	s.people, s.stranger = []*person{ada, bob}, &stranger{person: eve}
	for _, src := range s.plan.agents() {
		if _, err := s.hosts[0].engine.ApplyAgent(context.Background(), ada.me, engine.AgentSource{Filename: "agent.hcl", Source: []byte(src)}); err != nil {
			return err
		}
	}
	for i, owner := range []*person{ada, ada, bob} {
		if err := s.join(i, owner, i != 1 || s.plan.devices > 1); err != nil {
			return err
		}
	}
	for _, p := range s.people {
		if err := p.firstGrants(); err != nil {
			return err
		}
	}
	return nil
}

// newPerson makes a principal, and their tenant.
func (s *Sim) newPerson(tenant, name string, admin bool) (*person, error) {
	p := &person{party: party{s: s, name: name, up: true}, n: len(s.people), token: []byte(name), grants: map[string]protocol.GrantID{},
		decided: map[protocol.ApprovalID]bool{}, resolved: map[protocol.ActionID]bool{}}
	if name == "bob" {
		p.n = 1
	}
	for _, h := range s.hosts {
		p.links = append(p.links, s.newLink(name+"-"+h.name))
	}
	return p, s.store.Update(context.Background(), store.AsOperator("simulation"), func(tx *store.Tx) error {
		ten, err := tx.EnsureTenant(tenant)
		if err != nil {
			return err
		}
		row := policy.Principal{ID: protocol.NewID[protocol.PrincipalKind](tx.Now, s.entropy), Tenant: ten.ID, Name: name, Kind: "user",
			Admin: admin, TokenHash: p.token, CreatedAt: tx.Now}
		p.id, p.me = row.ID, store.AsPrincipal(row.Tenant, row.ID, admin)
		return tx.InsertPrincipal(row)
	})
}

// firstGrants are those that an agent begins with.
func (p *person) firstGrants() error {
	if !p.s.plan.grants {
		return nil
	}
	for _, agent := range []string{"assistant", "coder"} {
		g, err := p.s.hosts[0].engine.CreateGrant(context.Background(), p.me, engine.NewGrant{Agent: agent, Credentials: []string{"key"}})
		if err != nil {
			return err
		}
		p.grants[agent] = g.ID
	}
	return nil
}

// join enrols one machine and starts it.
func (s *Sim) join(i int, owner *person, devices bool) error {
	ctx, tenant := context.Background(), owner.me.Tenant()
	m := s.newMachine(i, devices)
	m.caller = store.AsRunner(tenant, m.id)
	code := []byte("code of " + m.name)
	_, err := s.hosts[0].engine.CreateJoinCode(ctx, owner.me, engine.NewJoinCode{Hash: code, Name: m.name, TTL: time.Minute})
	if err == nil {
		_, err = s.hosts[0].engine.EnrollRunner(ctx, engine.Enrolment{CodeHash: code, Runner: m.id, PublicKey: []byte(m.name), Thumbprint: m.thumb})
	}
	s.machines = append(s.machines, m)
	m.start()
	return err
}
