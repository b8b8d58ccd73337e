//go:build linux

package e2e

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
)

// revokeService is an agent of the server's with the tools that follow.
const revokeService = `
agent "NAME" {
  profile       = "enterprise"
  placement     = "service"
  data_boundary = "internal"
  instructions  = "You talk."
  model { route = "scripted" }
  limits {
    max_model_calls = 500
    max_tool_calls  = 2000
    max_tokens      = 20000000
    max_cost_usd    = 100
  }
`

const tickTool = `
  tool "tick" {
    kind        = "http"
    description = "Counts."
    destination = "clock"
    method      = "GET"
    path        = "/tick"
    credential  = "clock"
    effect      = "R0"
    recovery    = "idempotent"
    input       = { type = "object", additionalProperties = false }
  }
`

const revokeRunner = `
agent "NAME" {
  profile       = "coding"
  data_boundary = "internal"
  trust         = "trusted"
  instructions  = "You work."
  model { route = "scripted" }
  sandbox_tools = ["shell"]
}
`

// minutesOf words, a rune at a time, for whoever says prompt.
func minutesOf(prompt, delay string) string {
	return fmt.Sprintf("rule %[1]q {\n  when { user_contains = %[1]q }\n  chunk_delay = %[2]q\n  chunk_runes = 1\n  text = %[3]q\n}\n",
		prompt, delay, strings.Repeat("word ", 500))
}

// commandRule is a command whose children leave its session, and that ignores signals.
var commandRule = strings.ReplaceAll(`
rule "sleep" {
  when {
    user_contains = "work long"
    offers        = ["shell"]
  }
  call "shell" {
    arguments = { command = "setsid sleep NAP1 & (setsid sh -c 'sleep NAP2 & exec setsid sleep NAP3' &) ; trap '' TERM HUP INT; sleep NAP4; sleep NAP5" }
  }
}
`, "NAP", nap)

const tickRule = `
rule "tick" {
  when { user_contains = "tick for ever" }
  call "tick" { arguments = {} }
}
`

// nap begins the seconds that the sandboxed commands of this run sleep for, and of
// no other run on this machine.
var nap = strconv.Itoa(10_000 + rand.IntN(80_000))

// A grant is revoked in the middle of everything that can be under way with it.
// Each time is counted from the record of the revocation, by clocks of this
// machine; printed, and only held against a bound that is an order of magnitude
// wider than the promise. INV-13.
func TestRevokeInTheMiddle(t *testing.T) {
	upstream := newUpstream(t)
	agents := []string{}
	service := revokeService + tickTool + "}\n"
	for name, source := range map[string]string{"talker": service, "bystander": service, "thinker": revokeRunner, "worker": revokeRunner} {
		agents = append(agents, strings.ReplaceAll(source, "NAME", name))
	}
	script := minutesOf("talk long", "50ms") + minutesOf("think long", "50ms") + tickRule + commandRule
	s := newStack(t, stack.Config{Script: script, Agents: agents, Destinations: upstream.destinations()[:1]})
	me := first(t, s)
	edge := me.addEdge(stack.EdgeConfig{Name: "machine"})

	t.Run("a model stream of the server", func(t *testing.T) { me.with(t).revokesService(upstream) })
	t.Run("a model stream of a runner", func(t *testing.T) { me.with(t).revokesRunnerStream(edge) })
	t.Run("a command in a sandbox", func(t *testing.T) { me.with(t).revokesCommand(edge) })
}

func (p person) with(t *testing.T) *person {
	p.t = t
	return &p
}

// grantOf finds the grant of an agent.
func (p *person) grantOf(agent string) string {
	p.t.Helper()
	for _, g := range p.grants() {
		if g.GetAgent() == agent {
			return g.GetId()
		}
	}
	p.t.Fatalf("agent %s has no grant", agent)
	return ""
}

// A slow stream and a turn that calls without a pause end; another grant's stream
// goes on.
func (p *person) revokesService(upstream *upstream) {
	start := func(agent, prompt string) string { return p.submit("chat", prompt, "--new", "--agent", agent).ID }
	other := start("bystander", "talk long")
	await(p.t, "the bystander's stream", func() error { return answering(p.Stack, "talk long") })
	slow, busy := start("talker", "talk long"), start("talker", "tick for ever")
	await(p.t, "the streams", func() error {
		if n, ticks := open(p.Stack, "talk long"), upstream.since("tick", time.Time{}); n != 2 || len(ticks) < 3 {
			return fmt.Errorf("%d streams, %d ticks", n, len(ticks))
		}
		return nil
	})
	r := p.revoke(p.grantOf("talker"))
	for _, id := range []string{slow, busy} {
		p.wantRevoked(id)
	}
	streams := receivedBy(p.Stack, "talk long")
	await(p.t, "the end of the flow", func() error {
		if streams = receivedBy(p.Stack, "talk long"); streams[1].EndedAt.IsZero() {
			return fmt.Errorf("it is open")
		}
		return nil
	})
	if !streams[0].EndedAt.IsZero() {
		p.t.Error("the stream under another grant ended too")
	}
	m := measures{since: r.RevokedAt}
	m.add("last_accepted_model", lastOf(receivedBy(p.Stack, "tick")))
	m.add("last_accepted_upstream", upstream.last("tick"))
	m.add("flow_end", streams[1].EndedAt)
	p.refusedNow("talker", slow)
	p.must("cancel", other)
	if model, ticks := lastOf(receivedBy(p.Stack, "tick")), upstream.last("tick"); !model.Equal(m.at["last_accepted_model"]) || !ticks.Equal(m.at["last_accepted_upstream"]) {
		p.t.Errorf("something was accepted later: %s, %s", model, ticks)
	}
	m.judge(p.t, "service")
}

// The stream of a runner's turn ends, and so do its processes.
func (p *person) revokesRunnerStream(e *stack.Edge) {
	id := p.submit("run", "think long", "--agent", "thinker", "--workspace", p.project("thinking", map[string]string{"a": "a\n"})).ID
	await(p.t, "the stream", func() error { return answering(p.Stack, "think long") })
	tree := attemptProcesses(p.t, e)
	if len(tree) < 3 {
		p.t.Fatalf("the attempt has the processes %v: a supervisor, a sandbox and a worker are expected", tree)
	}
	watch := watchEnd(tree)
	r := p.revoke(p.grantOf("thinker"))
	p.wantRevoked(id)
	await(p.t, "the end of the flow", func() error {
		if open(p.Stack, "think long") > 0 {
			return fmt.Errorf("it is open")
		}
		return nil
	})
	m := measures{since: r.RevokedAt}
	stream := receivedBy(p.Stack, "think long")
	m.add("last_accepted_model", lastOf(stream))
	m.add("flow_end", stream[len(stream)-1].EndedAt)
	m.add("process_end", watch(p.t))
	p.refusedNow("thinker", id)
	m.judge(p.t, fmt.Sprintf("runner-stream processes=%d", len(tree)))
}

// A command with children that left its session, its group and its parent, and
// that ignore signals, ends with all of them.
func (p *person) revokesCommand(e *stack.Edge) {
	id := p.submit("run", "work long", "--agent", "worker", "--workspace", p.project("working", map[string]string{"a": "a\n"})).ID
	var tree []int
	await(p.t, "the command and its children", func() (err error) {
		tree, err = asleep(p.t, e)
		return err
	})
	watch := watchEnd(tree)
	r := p.revoke(p.grantOf("worker"))
	p.wantRevoked(id)
	m := measures{since: r.RevokedAt}
	m.add("last_accepted_model", lastOf(receivedBy(p.Stack, "sleep")))
	m.add("process_end", watch(p.t))
	if left := processes(p.t, func(argv []string) bool {
		return argv[0] == "sleep" && len(argv) == 2 && strings.HasPrefix(argv[1], nap)
	}); len(left) > 0 {
		p.t.Errorf("processes %v outlive their authority", left)
	}
	p.refusedNow("worker", id)
	m.judge(p.t, fmt.Sprintf("command processes=%d", len(tree)))
}

func (p *person) wantRevoked(id string) {
	p.t.Helper()
	if turn := p.ended(id); turn.GetState() != "FAILED" || turn.GetReason() != "grant_revoked" {
		p.t.Errorf("turn %s is %s (%s)", id, turn.GetState(), turn.GetReason())
	}
}

// refusedNow: nothing new comes under the grant, in its sessions or in new ones.
func (p *person) refusedNow(agent, turn string) {
	p.t.Helper()
	if _, err := p.cli("chat", "--session", p.turn(turn).GetSessionId(), "talk long"); err == nil {
		p.t.Error("a session of a revoked grant takes a turn")
	}
	if _, err := p.cli("chat", "--new", "--detach", "--agent", agent, "talk long"); err == nil {
		p.t.Errorf("agent %s takes a new session after its grant was revoked", agent)
	}
	for _, g := range p.grants() {
		if g.GetAgent() == agent {
			p.t.Errorf("the grant is listed: %v", g)
		}
	}
}

func (p *person) grants() []*apiv1.Grant {
	p.t.Helper()
	res, err := p.api.Grants.ListGrants(p.t.Context(), &apiv1.ListGrantsRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	return res.GetGrants()
}

// revokeBound is generous: what is proven is that it ends, not how fast. It is less than
// what the lease, whose authority and retention end it too, or the text would take.
const revokeBound = time.Minute
