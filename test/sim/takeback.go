package sim

import (
	"context"
	"time"

	"bivouac/server/engine"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// takeBack decides when this person takes something back, if at all: a grant, a
// machine, and, as the admin, another person's login. INV-13.
func (p *person) takeBack() {
	s := p.s
	if s.plan.grants && s.chance(s.plan.revokes) {
		for range 2 {
			p.after(s.between(0, s.plan.heal), "", func() { p.revokeGrant(pick(s, "assistant", "coder")) })
		}
	}
	if s.chance(s.plan.revokes / 2) {
		mine := s.machines[:2]
		if p.n == 1 {
			mine = s.machines[2:]
		}
		p.after(s.between(0, s.plan.heal), "", func() { p.revokeRunner(pick(s, mine...)) })
	}
	if p.n == 0 && s.chance(s.plan.revokes/2) {
		p.after(s.between(0, s.plan.heal), "", func() { p.disable(s.people[1]) })
	}
}

// grant gives an agent a grant, unless it has one.
func (p *person) grant(agent string) {
	say(p, "grant for "+agent, func(ctx context.Context, e *engine.Engine) (policy.Grant, error) {
		return e.CreateGrant(ctx, p.me, engine.NewGrant{Agent: agent, Credentials: []string{"key"}})
	}, func(g policy.Grant, err error) {
		if err == nil {
			p.grants[agent] = g.ID
		}
	})
}

func (p *person) revokeGrant(agent string) {
	id, known := p.grants[agent]
	if !known {
		return
	}
	say(p, "revoke "+id.String(), func(ctx context.Context, e *engine.Engine) (engine.Revocation, error) {
		r, err := e.RevokeGrant(ctx, p.me, id, "as planned")
		if err == nil {
			p.s.took(policy.FloorGrant, id.String(), 1)
		}
		return r, err
	}, func(r engine.Revocation, err error) {
		switch {
		case err != nil && again(err):
			p.after(p.pause(), "", func() { p.revokeGrant(agent) })
		case err == nil && r.Grant.RevokedAt.IsZero():
			p.s.violate("INV-13: the revocation of %s was answered, and it stands", id)
		case err == nil && p.s.chance(0.7):
			p.after(p.s.between(0, 30*time.Second), "", func() { p.grant(agent) })
		}
	})
}

func (p *person) revokeRunner(m *machine) {
	say(p, "revoke "+m.name, func(ctx context.Context, e *engine.Engine) (execution.Runner, error) {
		r, err := e.RevokeRunner(ctx, p.me, m.id, "as planned")
		if err == nil {
			p.s.took(policy.FloorRunner, m.thumb, 1)
		}
		return r, err
	}, func(r execution.Runner, err error) {
		switch {
		case err != nil && again(err):
			p.after(p.pause(), "", func() { p.revokeRunner(m) })
		case err == nil && !r.State.Terminal():
			p.s.violate("INV-13: the revocation of %s was answered, and it is %s", m.name, r.State)
		}
	})
}

func (p *person) disable(other *person) {
	say(p, "disable "+other.name, func(ctx context.Context, e *engine.Engine) (policy.Principal, error) {
		v, err := e.DisablePrincipal(ctx, p.me, other.id)
		if err == nil {
			p.s.took(policy.FloorPrincipal, other.id.String(), 1)
		}
		return v, err
	}, func(_ policy.Principal, err error) {
		if err != nil && again(err) {
			p.after(p.pause(), "", func() { p.disable(other) })
		}
	})
}

// more asks for one more conversation, in a run that is too quiet.
func (p *person) more(c chat) { p.talk(c) }

// fall is one thing that was taken back, as the run saw it in the store.
type fall struct {
	minimum int64
	at      time.Duration
	by      *host // that recorded it
}

type fallKey struct {
	kind policy.FloorKind
	id   string
}

// sawFloors takes in what was committed since the last look, and by whom. It is
// asked after every commit, and again before anything is minted.
func (s *Sim) sawFloors() {
	err := s.store.View(context.Background(), store.AsLoop("observer"), func(tx *store.Tx) error {
		news, newest, err := tx.Floors(s.fallen.seq, 0)
		for _, f := range news {
			k := fallKey{f.Kind, f.ID}
			if old, known := s.fallen.by[k]; known && old.minimum >= f.Minimum {
				continue
			}
			s.fallen.by[k] = fall{f.Minimum, s.now(), s.acting}
			if taken[f.Kind] {
				s.fault(faultRevoke)
				s.note("%s takes back %d %s below %d", s.acting.name, f.Kind, f.ID, f.Minimum)
			}
		}
		s.fallen.seq = max(s.fallen.seq, newest)
		return err
	})
	if err != nil {
		s.violate("the store cannot be read: %v", err)
	}
}

// took notes what a server has answered to be taken back, whatever floors it left.
func (s *Sim) took(kind policy.FloorKind, id string, minimum int64) {
	s.sawFloors()
	k := fallKey{kind, id}
	if old, known := s.fallen.by[k]; !known || old.minimum < minimum {
		s.fallen.by[k] = fall{minimum, s.now(), s.acting}
		s.note("%s says that %d %s is taken back below %d", s.acting.name, kind, id, minimum)
	}
}

// taken are the kinds of floor by which somebody takes something back; the others
// are of what ended by itself.
var taken = map[policy.FloorKind]bool{policy.FloorGrant: true, policy.FloorPrincipal: true, policy.FloorRunner: true, policy.FloorInstance: true}

// fallen are all floors of a run.
type fallen struct {
	seq int64
	by  map[fallKey]fall
}

// below finds a floor that a value is under.
func (f *fallen) below(kind policy.FloorKind, id string, value int64) (fall, bool) {
	fl, known := f.by[fallKey{kind, id}]
	return fl, known && id != "" && value < fl.minimum
}
