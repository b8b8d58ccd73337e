//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/test/e2e/stack"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
	"bivouac/test/engines/vaulttest"
)

// turnKind is a way in which a turn is placed, with an agent of its own.
type turnKind struct {
	name, agent string
	node        bool // it runs on a node
}

var (
	warmSlot      = turnKind{name: "warm slot", agent: "warm", node: true}
	ownAllocation = turnKind{name: "own allocation", agent: "owner", node: true}
	personal      = turnKind{name: "personal turn", agent: "assistant"}
)

// enginesAgents are an agent for each kind. On a runner one works on files; the personal
// one asks an upstream.
func enginesAgents() []string {
	coder := func(name, more string) string {
		return strings.Replace(strings.Replace(handoverAgent, `"coder"`, fmt.Sprintf("%q", name), 1), `  trust `, more+`  trust `, 1)
	}
	return []string{coder(warmSlot.agent, ""), coder(ownAllocation.agent, "  allocation = \"own\"\n  sandbox {\n    cpu_millis = 300\n    memory     = \"256MiB\"\n    disk       = \"64MiB\"\n  }\n"),
		strings.ReplaceAll(revokeService, "NAME", personal.agent) + tickTool + "}\n"}
}

// enginesScript: the third task of the hand-over, and the same with a request of the
// upstream in the place of each command; slowly enough for an admin's commands.
var enginesScript = handoverEnd + strings.Replace(handoverScript, `"100ms"`, `"250ms"`, 1) + `
rule "asked twice" {
  when {
    user_contains = "ask twice"
    results       = 2
  }
  text = "ANSWER-TICK: asked twice."
}
rule "ask" {
  when {
    user_contains = "ask twice"
    results       = 0
  }
  call "tick" { arguments = {} }
}
rule "ask again" {
  when {
    user_contains = "ask twice"
    result_of     = "tick"
  }
  chunk_delay = "250ms"
  chunk_runes = 1
  text        = "thinking about it for a while"
  call "tick" { arguments = {} }
}
`

// A deployment whose runners Nomad starts, whose grants are in Vault and whose paths are
// in Consul. In the middle of a turn of each kind a grant is revoked, an intention is
// flipped, a node is drained, a client's agent is killed, and a node loses its power.
func TestThreeEngines(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the whole product with real servers of Nomad, Vault and Consul")
	}
	nomadserver.Each(t, func(t *testing.T, nomad engine.Program) {
		consulserver.Each(t, func(t *testing.T, consul engine.Program) {
			vaulttest.Each(t, func(t *testing.T, vault engine.Program) {
				e := newEngines(t, nomad, consul, vault)
				for _, k := range []turnKind{warmSlot, ownAllocation, personal} {
					t.Run(k.name, func(t *testing.T) { e.row(t, k) })
				}
			})
		})
	})
}

// engines is a deployment on all three.
type engines struct {
	*fleet
	consul   *stack.Consul
	vault    *stack.Vault
	upstream *upstream
	nodes    map[string]*nomadserver.Client
	turns    int
}

func newEngines(t *testing.T, nomad, consul, vault engine.Program) *engines {
	v, c := vaulttest.Start(t, vault), consulserver.Start(t, consul)
	e := &engines{upstream: newUpstream(t), nodes: map[string]*nomadserver.Client{},
		vault:  &stack.Vault{Address: v.Address(), CAFile: v.CAFile(), Token: v.RootToken(), AuditFile: v.AuditFile(), Command: vault.Command, Home: t.TempDir()},
		consul: &stack.Consul{Address: c.Address(), CAFile: c.CAFile(), Token: c.Management(), Command: consul.Command, Home: t.TempDir()}}
	e.fleet = newFleet(t, nomad, stack.Config{Script: enginesScript, Agents: enginesAgents(), Destinations: e.upstream.destinations()[:1], Vault: e.vault, Consul: e.consul})
	for _, name := range []string{"alpha", "beta"} {
		e.nodes[name] = e.addNode(name)
	}
	e.runJob()
	for name, node := range e.nodes {
		e.runner(name, node)
	}
	return e
}

// midTurn is a turn in the middle of its slow answer, after its first effect.
type midTurn struct {
	*engines
	turnKind
	t       *testing.T
	me      *person
	id, dir string
	node    string // empty: it runs on none
	asked   int    // first calls of the model, and requests of the upstream, before it
	ticks   int
}

// row puts a turn of a kind into the middle of everything that may happen. The revoked
// grant is the last: the agent has none after it.
func (e *engines) row(t *testing.T, k turnKind) {
	for _, happens := range []struct {
		name string
		do   func(*midTurn)
	}{
		{"the agent of its node is killed", (*midTurn).agentKilled},
		{"its node is drained", (*midTurn).drained},
		{"its node loses power", (*midTurn).powerless},
		{"an intention is flipped", (*midTurn).flipped},
		{"its grant is revoked", (*midTurn).revoked},
	} {
		if !t.Run(happens.name, func(t *testing.T) { happens.do(e.begin(t, k)) }) {
			return
		}
	}
}

// begin submits a turn and waits for its middle.
func (e *engines) begin(t *testing.T, k turnKind) *midTurn {
	c := &midTurn{engines: e, turnKind: k, t: t, me: e.person.with(t)}
	c.asked, c.ticks = len(receivedBy(e.Stack, "append")), len(e.upstream.since("tick", time.Time{}))
	if !k.node {
		c.id = c.me.submit("chat", "ask twice", "--new", "--agent", k.agent).ID
		await(t, "the slow answer after the first request", func() error { return answering(e.Stack, "ask again") })
		return c
	}
	e.turns++
	c.dir = c.me.project(fmt.Sprintf("project-%d", e.turns), map[string]string{"README": "a project\n"})
	c.id = c.me.submit("run", "third task", "--agent", k.agent, "--workspace", c.dir).ID
	await(t, "the slow answer after a checkpoint", func() error {
		if turn := c.me.turn(c.id); turn.GetEndedAt() != nil {
			t.Fatalf("turn %s is %s (%s): %s", c.id, turn.GetState(), turn.GetReason(), turn.GetMessage())
		}
		return errors.Join(answering(e.Stack, "think long"), c.me.hasEvent(c.id, "turn.checkpoint"))
	})
	c.node = c.me.turn(c.id).GetAttempts()[0].GetRunnerName()
	return c
}

// placed is the node of the turn, or any of the two for a turn that runs on none.
func (c *midTurn) placed() (name string, node *nomadserver.Client) {
	name = c.node
	if name == "" {
		name = "alpha"
	}
	return name, c.nodes[name]
}

// wentOn: the turn came to its end with these attempts, and nothing was done twice.
func (c *midTurn) wentOn(attempts ...string) {
	c.t.Helper()
	turn := c.me.completed(c.id)
	if !c.turnKind.node {
		attempts = nil
	}
	wantAttempts(c.t, turn, attempts...)
	if !c.turnKind.node {
		if n := len(c.upstream.since("tick", time.Time{})) - c.ticks; n != 2 {
			c.t.Errorf("the upstream was asked %d times, not twice", n)
		}
		return
	}
	if n := len(receivedBy(c.Stack, "append")) - c.asked; n != 1 {
		c.t.Errorf("the model was asked for the first command %d times", n)
	}
	c.me.must("apply", c.id, "--workspace", c.dir)
	wantFile(c.t, filepath.Join(c.dir, "log.txt"), "once\ntwice\n")
}

// endedFor a reason: the turn, its flow and its processes are over, and no second effect
// came.
func (c *midTurn) endedFor(reason string) {
	c.t.Helper()
	if turn := c.me.ended(c.id); turn.GetState() != "FAILED" || turn.GetReason() != reason {
		c.t.Errorf("turn %s is %s (%s): %s", c.id, turn.GetState(), turn.GetReason(), turn.GetMessage())
	}
	await(c.t, "the end of flow and processes", func() error {
		for _, rule := range []string{"think long", "ask again"} {
			if n := open(c.Stack, rule); n > 0 {
				return fmt.Errorf("%d answers of %q are open", n, rule)
			}
		}
		if left := processes(c.t, func(argv []string) bool { return len(argv) > 1 && argv[1] == "supervise" && within(argv, c.state) }); len(left) > 0 {
			return fmt.Errorf("supervisors %v", left)
		}
		return nil
	})
	if n := len(c.upstream.since("tick", time.Time{})) - c.ticks; !c.turnKind.node && n != 1 {
		c.t.Errorf("the upstream was asked %d times, not once", n)
	}
}

// agentKilled: what Nomad's agent started goes on without it, and is found again.
func (c *midTurn) agentKilled() {
	name, node := c.placed()
	node.Kill(c.t)
	c.wentOn("SUCCEEDED on " + name)
	node.Start(c.t)
	c.runner(name, node)
}

func (c *midTurn) drained() {
	name, node := c.placed()
	nodes := c.nomad.Root().Nodes()
	if _, err := nodes.UpdateDrain(node.Node, &api.DrainSpec{Deadline: time.Second}, false, nil); err != nil {
		c.t.Fatal(err)
	}
	c.wentOn("INTERRUPTED on "+name, "SUCCEEDED on "+other(name))
	if _, err := nodes.UpdateDrain(node.Node, nil, true, nil); err != nil {
		c.t.Fatal(err)
	}
	c.runner(name, node)
}

func (c *midTurn) powerless() {
	name, node := c.placed()
	node.PowerOff(c.t)
	c.wentOn("INTERRUPTED on "+name, "SUCCEEDED on "+other(name))
	node.Start(c.t)
	c.runner(name, node)
}

func other(name string) string {
	if name == "alpha" {
		return "beta"
	}
	return "alpha"
}

// flipped to deny and back: the next turn works.
func (c *midTurn) flipped() {
	const everybody = `{ Name = "*", Action = "allow" }`
	c.intentions(fmt.Sprintf(`{ Name = "agent-%s", Action = "deny" }, `, c.agent) + everybody)
	c.endedFor("policy_denied")
	c.intentions(everybody)
	again := c.begin(c.t, c.turnKind)
	again.wentOn("SUCCEEDED on " + again.node)
}

// intentions about who may reach the model.
func (c *midTurn) intentions(sources string) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "model.hcl")
	c.me.write(file, fmt.Sprintf("Kind = \"service-intentions\"\nName = \"model-scripted\"\nSources = [%s]\n", sources), 0o600)
	if out, err := c.consul.Admin(c.t.Context(), "config", "write", file); err != nil {
		c.t.Fatalf("%v\n%s", err, out)
	}
}

func (c *midTurn) revoked() {
	grant := c.me.grantOf(c.agent)
	accessor, err := c.vault.Admin(c.t.Context(), "kv", "get", "-field=accessor", "bivouac-grants/"+c.me.id+"/"+grant)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.vault.Admin(c.t.Context(), "token", "revoke", "-accessor", accessor); err != nil {
		c.t.Fatal(err)
	}
	c.endedFor("grant_revoked")
	c.me.refusedNow(c.agent, c.id)
}
