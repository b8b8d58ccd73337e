//go:build linux

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// deployedAgents are one that talks, and one that changes files on a runner.
var deployedAgents = []string{handoverAgent, `
agent "assistant" {
  profile       = "personal"
  data_boundary = "personal"
  instructions  = "You talk."
  model { route = "scripted" }
}
`}

const deployedScript = handoverScript + `
rule "hello" {
  when {
    user_contains = "hello"
  }
  text = "ANSWER-HELLO: how do you do."
}
`

// A real Nomad runs all of the product by its job files, as who may run jobs and no more:
// people talk, and a runner that enrolled by its workload identity works. What a
// deployment is made of is in its host volumes: the broker's keyring and the server's
// state are there after other allocations, and after the loss of the node's power. While
// Nomad does not reach the node, nothing there is begun anew.
func TestNomadDeploys(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries, and runs a real Nomad")
	}
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		f, c := newDeployed(t, p, stack.Config{Script: deployedScript, Agents: deployedAgents})
		root, tenant := f.fingerprint(), f.tenant()
		said := f.must("chat", "--agent", "assistant", "hello")
		if !strings.Contains(said, "ANSWER-HELLO") {
			t.Errorf("chat answers %q", said)
		}
		// A turn that waits for a runner says what Nomad lacks to run one.
		dir := f.project("project", map[string]string{"README": "a project\n"})
		asked := f.submit("run", "first task", "--agent", "coder", "--workspace", dir)
		f.explains(asked.ID, "Nomad has no job bivouac-runner in namespace agents", "nomad job run")
		f.runJob()
		f.explains(asked.ID, "node pool agents, in which Nomad is to run them, has no node", "node_pool")
		a := f.addNode("alpha")
		f.runner("alpha", a)
		one := f.completed(asked.ID)
		wantAttempts(t, one, "SUCCEEDED on alpha")

		// Another allocation of each opens what the first one made: keyring, sealed
		// credential and grant, sessions, and the enrolment by a code that is used up.
		c.anew(f.Stack, "broker", func() error { return c.Broker(t.Context(), f.Stack) })
		c.anew(f.Stack, "server", func() error { return c.Server(t.Context(), f.Stack, tenant) })
		f.runner("alpha", a)
		two := f.completed(f.submit("run", "second task", "--session", one.GetSessionId()).ID)
		wantAttempts(t, two, "SUCCEEDED on alpha")
		if now := f.fingerprint(); now != root {
			t.Errorf("the deployment's root is %s, was %s", now, root)
		}

		// Power fails on the node, and it comes back.
		c.node.PowerOff(t)
		c.node.Start(t)
		c.answers(f.Stack)
		f.runner("alpha", a)
		f.completed(f.submit("run", "first task", "--agent", "coder", "--workspace", dir).ID)
		if now := f.fingerprint(); now != root {
			t.Errorf("after a reboot the deployment's root is %s, was %s", now, root)
		}

		// Nomad loses sight of the node and finds it again: what ran there runs on.
		before := f.processes("broker", "server")
		c.node.Kill(t)
		await(t, "Nomad's loss of the node", func() error {
			n, _, err := f.nomad.Root().Nodes().Info(c.node.Node, nil)
			if err == nil && n.Status == api.NodeStatusReady {
				err = fmt.Errorf("it is %s", n.Status)
			}
			return err
		})
		f.completed(f.submit("chat", "hello", "--agent", "assistant").ID)
		c.node.Start(t)
		c.begun("broker")
		c.begun("server")
		if after := f.processes("broker", "server"); after != before || !strings.Contains(after, "broker") || !strings.Contains(after, "server") {
			t.Errorf("after Nomad was away there runs %s, before %s", after, before)
		}
	})
}
