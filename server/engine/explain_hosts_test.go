package engine_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"bivouac/edge/protocol"
	"bivouac/server/placement"

	et "bivouac/server/engine/enginetest"
)

// pool is where another scheduler runs machines for one principal, and lacks a node.
type pool struct{ of string }

func (p *pool) Standing(string) placement.Host { return placement.Host{} }

func (p *pool) Rooms(protocol.TenantID) []placement.Resources { return nil }

func (p *pool) Absent(_ protocol.TenantID, _ []string, principal ...string) placement.Said {
	if slices.Contains(principal, p.of) {
		return placement.Said{Text: "the pool has no node", Remedy: "add a node"}
	}
	return placement.Said{}
}

// What another scheduler says of runners that it does not run is told to who should have
// them, while nothing takes the turn, and to nobody else (INV-9).
func TestExplainAbsentRunners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pool{}
		w := et.New(t, et.WithHosts(p))
		p.of = w.Person.Name
		turn := w.Submit(w.Session("coder"), "fix it")
		w.Settle()
		x, err := w.Engine.Explain(ctx(), w.Me(), turn.ID.String())
		if err != nil || !strings.Contains(x.WaitingFor, "; the pool has no node") || !slices.Contains(x.Remedies, "add a node") {
			t.Errorf("%+v, %v", x, err)
		}
		p.of = "somebody else"
		if x, err = w.Engine.Explain(ctx(), w.Me(), turn.ID.String()); err != nil || strings.Contains(x.WaitingFor, "pool") || slices.Contains(x.Remedies, "add a node") {
			t.Errorf("another's pool: %+v, %v", x, err)
		}
		p.of = w.Person.Name
		w.Join("laptop")
		w.Settle()
		if x, err = w.Engine.Explain(ctx(), w.Me(), turn.ID.String()); err != nil || strings.Contains(x.WaitingFor, "pool") {
			t.Errorf("it has a runner: %+v, %v", x, err)
		}
		if err := w.Check(); err != nil {
			t.Error(err)
		}
	})
}
