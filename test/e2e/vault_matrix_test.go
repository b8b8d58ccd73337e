//go:build linux

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

var (
	allEnds = flag.Bool("ends", false, "TestEndsInVault runs all ways in which a grant ends with all works, which takes minutes")
	polling = flag.Bool("ends-by-polling", false, "TestEndsInVault has no audit source: the broker finds ends by asking alone")
)

// Whatever ends a grant ends what runs under it, in the whole product on a real
// server: nothing new reaches an upstream, streams and processes end, a signed
// receipt is kept, and another's work goes on. INV-13.
//
// Without -ends it is a part of the matrix that needs no machine. Times are printed,
// counted from the return of the admin's command by clocks of this machine; what is
// held against a bound is an order of magnitude wider than the promise.
func TestEndsInVault(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the whole product with a real server")
	}
	ways, works := []endWay{byAccessor, byEntity, byIndex, byPerson}, []work{stream, httpTool, mcpTool, approval}
	if *allEnds {
		// The last way ends every grant of the deployment.
		ways = []endWay{byAccessor, byTree, byOrphan, byEntity, byExpiry, byIndex, byPerson, byPrefix}
		works = []work{idle, stream, httpTool, mcpTool, command, device, approval}
	}
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		m := newEndings(t, p, works)
		for i, w := range ways {
			t.Run(w.name, func(t *testing.T) { m.row(t, w, fmt.Sprintf("p%d", i)) })
		}
		t.Log("last request / end of flow or process / recorded, in ms after the end of the grant\n" + m.table.String())
	})
}

// ends is a deployment whose grants end one way after the other.
type ends struct {
	*stack.Stack
	upstream *upstream
	vault    *stack.Vault
	works    []work
	me       *person // whose work goes on
	table    strings.Builder
}

func newEndings(t *testing.T, p engine.Program, works []work) *ends {
	server := vaulttest.Start(t, p)
	m := &ends{works: works, upstream: newUpstream(t), vault: &stack.Vault{Address: server.Address(), CAFile: server.CAFile(), Token: server.RootToken(),
		AuditFile: server.AuditFile(), Command: p.Command, Home: t.TempDir()}}
	if *polling {
		m.vault.AuditFile = ""
	}
	m.Stack = newStack(t, stack.Config{Script: endedScript, Agents: endedAgents(works), Destinations: m.upstream.destinations(), Vault: m.vault})
	m.me = first(t, m.Stack)
	names, lines := "| "+p.Name, "|---"
	for _, w := range works {
		names, lines = names+" | "+w.name, lines+"|---"
	}
	fmt.Fprintf(&m.table, "%s |\n%s|\n", names, lines)
	return m
}

// leaver is a person all of whose grants end.
type leaver struct {
	*person
	ends *ends
}

// ending is one work whose grant ends in one way.
type ending struct {
	work
	person    *leaver
	edge      *stack.Edge
	grant     string
	turn      submitted
	processes []int
	watch     func(*testing.T) time.Time

	made, begun, over       time.Time
	last, closed, died, rec time.Time // zero: there is no such thing
}

// row ends the grants of a new person in one way, in the middle of each work.
func (m *ends) row(t *testing.T, w endWay, name string) {
	x := &leaver{person: newPerson(t, m.Stack, "", name, false), ends: m}
	m.admin(t, w.before)
	t.Cleanup(func() { m.admin(t, w.after) })
	all := x.all()
	bystander := m.me.with(t).submit("chat", "stand by", "--new", "--agent", "bystander").ID
	await(t, "the bystander's stream", func() error { return answering(m.Stack, "stand by") })
	for _, c := range all {
		c.underway()
	}
	known := make([]string, len(all))
	for i, c := range all {
		if w.known != nil && (i == 0 || !w.whole) {
			known[i] = w.known(c)
		}
		if c.processes != nil {
			c.watch = watchEnd(c.processes)
		}
	}
	for i, c := range all {
		if i > 0 && w.whole {
			c.over = all[0].over
			continue
		}
		c.end(w, known[i])
	}
	if soon := time.Now(); w.before != nil && all[0].over.Before(soon) {
		t.Fatalf("the grants ended by themselves %s before all works were watched", soon.Sub(all[0].over))
	}
	line := "| " + w.name
	for _, c := range all {
		c.judge(w)
		line += " | " + c.measured()
	}
	m.table.WriteString(line + " |\n")
	for _, c := range all {
		c.silent()
	}
	if turn := m.me.with(t).turn(bystander); (turn.GetEndedAt() != nil) != w.everybody {
		t.Errorf("the turn under another's grant is %s (%s): %s", turn.GetState(), turn.GetReason(), turn.GetMessage())
	}
	if !w.everybody {
		m.me.with(t).must("cancel", bystander)
	}
}

// all of a person: a grant for each work, and a machine where one needs it.
func (x *leaver) all() (all []*ending) {
	var edge *stack.Edge
	for _, work := range x.ends.works {
		if work.machine && edge == nil {
			notes := filepath.Join(x.home, "notes")
			x.write(filepath.Join(notes, "a"), "a\n", 0o644)
			edge = x.addEdge(stack.EdgeConfig{Name: "machine-" + x.name, Folders: []string{"notes=" + notes + ":rw"}})
			x.t.Cleanup(func() {
				if err := edge.Daemon.End(); err != nil {
					x.t.Error(err)
				}
			})
		}
		all = append(all, &ending{work: work, person: x, edge: edge})
	}
	for _, c := range all {
		var made struct{ Grant struct{ ID string } }
		x.decoded(&made, "grant", "create", "--agent", c.agent, "--credential", "clock", "--credential", "tickets")
		c.grant, c.made = made.Grant.ID, time.Now()
	}
	return all
}

func (c *ending) state() *apiv1.Grant {
	c.person.t.Helper()
	res, err := c.person.api.Grants.GetGrant(c.person.t.Context(), &apiv1.GetGrantRequest{GrantId: c.grant})
	if err != nil {
		c.person.t.Fatal(err)
	}
	return res.GetGrant()
}

// judge waits for the end of everything under the grant.
func (c *ending) judge(w endWay) {
	p := c.person
	t := p.t
	t.Helper()
	await(t, "the record of the end of "+c.name, func() error {
		if g := c.state(); g.GetState() != "REVOKED" {
			return fmt.Errorf("the grant is %s", g.GetState())
		}
		return nil
	})
	g := c.state()
	if c.rec = g.GetRevokedAt().AsTime(); !strings.Contains(g.GetRevokedWhy(), w.why) {
		t.Errorf("%s: the grant ended because %q, not %q", c.name, g.GetRevokedWhy(), w.why)
	}
	if c.work == idle {
		if out, err := p.cli("chat", "--session", c.turn.Session, c.prompt); err == nil {
			t.Errorf("idle: its session takes a turn: %s", out)
		}
	} else {
		p.wantRevoked(c.turn.ID)
	}
	if c.work == approval {
		if asked := c.asked(); len(asked) > 0 {
			t.Errorf("it is still asked for: %v", asked)
		}
	}
	if c.watch != nil {
		c.died = c.watch(t)
	}
	if c.work == stream {
		await(t, "the end of the flow", func() error {
			if n := open(p.Stack, c.rule); n > 0 {
				return fmt.Errorf("%d are open", n)
			}
			return nil
		})
	}
	c.last = c.newest()
	if c.work == stream && c.closed.IsZero() {
		t.Error("the end of the stream was not seen outside")
	}
	c.kept()
	for what, at := range map[string]time.Time{"the last request": c.last, "the end of the stream": c.closed, "the end of processes": c.died} {
		if after := at.Sub(c.over); !at.IsZero() && after > revokeBound {
			t.Errorf("%s: %s came %s after the end of the grant", c.name, what, after)
		}
	}
}

// newest request of the work that anybody outside saw.
func (c *ending) newest() (last time.Time) {
	p := c.person
	for _, r := range receivedBy(p.Stack, c.rule) {
		if r.At.After(c.begun) {
			last = r.At
			if c.work == stream {
				c.closed = r.EndedAt
			}
		}
	}
	if all := p.ends.upstream.since(c.upstream, c.begun); len(all) > 0 && all[len(all)-1].After(last) {
		last = all[len(all)-1]
	}
	if c.work == device {
		for _, a := range p.turn(c.turn.ID).GetActions() {
			if at := a.GetOutcomeAt().AsTime(); a.GetState() == "SUCCEEDED" && at.After(last) {
				last = at
			}
		}
	}
	return last
}

// silent: nothing came after all ended, and what waited for approval never went out.
func (c *ending) silent() {
	if last := c.newest(); !last.Equal(c.last) {
		c.person.t.Errorf("%s: something was accepted later: %s after the end", c.name, last.Sub(c.over))
	}
	if n := len(c.person.ends.upstream.since("send", c.begun)); c.work == approval && n > 0 {
		c.person.t.Errorf("%d letters went out, and nobody approved one", n)
	}
}

// kept: the receipt is there for whoever asks later, hangs from the root that the
// login pins, and says what ended.
func (c *ending) kept() {
	p := c.person
	p.t.Helper()
	file := p.Path("receipt-" + c.grant)
	await(p.t, "the receipt of "+c.name, func() error {
		p.must("grant", "show", c.grant, "--receipt", file)
		_, err := os.Stat(file)
		return err
	})
	signed, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	payload, err := verifyReceipt(strings.TrimSpace(string(signed)), p.root())
	if err != nil {
		p.t.Fatalf("the receipt: %v", err)
	}
	var r receipt
	if err := json.Unmarshal(payload, &r); err != nil {
		p.t.Fatal(err)
	}
	if r.Kind != "revocation" || r.Grant != c.grant || len(r.Layers) < 3 {
		p.t.Errorf("the receipt says %s", payload)
	}
	p.forged(string(signed), payload)
}

// measured is the cell of the table.
func (c *ending) measured() string {
	show := func(at time.Time) string {
		if at.IsZero() {
			return "–"
		}
		return fmt.Sprintf("%.0f", float64(at.Sub(c.over))/1e6)
	}
	end := c.closed
	if !c.died.IsZero() {
		end = c.died
	}
	last := "none"
	if c.last.After(c.over) {
		last = show(c.last)
	}
	return last + " / " + show(end) + " / " + show(c.rec)
}
