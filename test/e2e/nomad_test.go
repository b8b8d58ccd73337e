//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// fleet is a deployment whose runners a real Nomad starts.
type fleet struct {
	*person
	nomad *nomadserver.Server
	state string // of each node's runner, below it by the node's name
}

// newFleet sets Nomad up with the product's own command, and the server's nomad block with
// a token of the policy that this made.
func newFleet(t *testing.T, p engine.Program, cfg stack.Config) *fleet {
	t.Helper()
	s := newStack(t, cfg)
	f := &fleet{person: first(t, s), nomad: nomadserver.Start(t, p), state: s.Path("nodes")}
	setUpNomad(t, f.nomad, filepath.Dir(f.Program("bivouac")), f.home)
	token := filepath.Join(t.TempDir(), "token")
	f.write(token, newToken(t, f.nomad, "bivouac-server")+"\n", 0o600)
	if err := os.Chmod(filepath.Dir(token), 0o700); err != nil {
		t.Fatal(err)
	}
	program := s.Path("edge-of-its-node")
	f.write(program, fmt.Sprintf(edgeOfItsNode, f.Program("bivouac-edge")), 0o755)
	if err := s.UseNomad(t.Context(), nomadBlock(f.nomad, token, f.tenant(),
		fmt.Sprintf("program = %q", program), fmt.Sprintf("state = %q", f.state))); err != nil {
		t.Fatal(err)
	}
	return f
}

// nomadBlock of server.hcl, with more lines of its enrol block: machines of the pool
// belong to who set the deployment up.
func nomadBlock(n *nomadserver.Server, token, tenant string, enrol ...string) string {
	return fmt.Sprintf(`nomad {
  address    = %q
  ca_file    = %q
  token_file = %q
  enrol "agents" {
    namespace = "agents"
    job       = "bivouac-runner"
    task      = "edge"
    audience  = "bivouac.test"
    node_pool = "agents"
    tenant    = %q
    principal = "me"
    %s
  }
}
`, n.Address(), n.CAFile(), token, tenant, strings.Join(enrol, "\n    "))
}

// edgeOfItsNode starts the supervisor of an allocation. All nodes are this machine, and
// the folder of each has the node's name.
const edgeOfItsNode = `#!/bin/sh
node=${NOMAD_ALLOC_DIR%%%%/alloc/*}
exec %s "$1" "$2" "$3" "$4" "$5/${node##*/}"
`

// addNode starts a node with a folder for its runner's key.
func (f *fleet) addNode(name string) *nomadserver.Client {
	f.t.Helper()
	dir := filepath.Join(f.state, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		f.t.Fatal(err)
	}
	return f.nomad.AddClient(f.t, nomadserver.ClientConfig{Name: name, Pool: "agents", Volumes: map[string]string{"bivouac-edge": dir}})
}

// runJob runs the product's job file as an operator does.
func (f *fleet) runJob() {
	f.t.Helper()
	code, err := f.API.Runners.CreateJoinCode(f.t.Context(), &apiv1.CreateJoinCodeRequest{Name: "fingerprint"})
	if err != nil {
		f.t.Fatal(err)
	}
	fingerprint := code.GetCode()[strings.LastIndexByte(code.GetCode(), '_')+1:]
	out, err := f.nomad.Run(f.t, "job", "run", "-detach", "-var", "server=https://"+f.RunnersAddress(), "-var", "fingerprint="+fingerprint, "-var", "audience=bivouac.test",
		"-var", "program="+f.Program("bivouac-edge"), "-var", "state="+f.state+"/${node.unique.name}", "-var", "slots=2", "../../jobs/runner.nomad.hcl")
	if err != nil {
		f.t.Fatalf("%v\n%s", err, out)
	}
}

// runner waits until the one of a node is connected and takes turns.
func (f *fleet) runner(node string, c *nomadserver.Client) *apiv1.Runner {
	f.t.Helper()
	var found *apiv1.Runner
	deadline := time.Now().Add(2 * time.Minute)
	for found == nil {
		all, err := f.API.Runners.ListRunners(f.t.Context(), &apiv1.ListRunnersRequest{})
		if err != nil {
			f.t.Fatal(err)
		}
		for _, r := range all.GetRunners() {
			if r.GetName() == node && r.GetConnected() && r.GetBoundary() != "" {
				found = r
			}
		}
		if found == nil && time.Now().After(deadline) {
			f.t.Fatalf("no runner of node %s: %v\n%s\n%s", node, all.GetRunners(), c.Log(), c.TaskLog("*", "edge"))
		}
		time.Sleep(50 * time.Millisecond)
	}
	return found
}

// A real Nomad starts runners by the product's job file. They enrol by their workload
// identities and take coding turns; a runner is the same after its allocation was
// replaced; a node that drains is given nothing new, and the turn that ran there goes on
// elsewhere from its checkpoint, done once.
func TestNomadRunners(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries, and runs a real Nomad")
	}
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		f := newFleet(t, p, stack.Config{Script: handoverEnd + handoverScript, Agents: []string{handoverAgent}})
		a := f.addNode("alpha")
		asked := time.Now()
		f.runJob()
		r := f.runner("alpha", a)
		t.Logf("bench name=nomad_job_to_connected_runner value=%d unit=ms", time.Since(asked).Milliseconds())
		dir := f.project("project", map[string]string{"README": "a project\n"})
		one := f.completed(f.submit("run", "first task", "--agent", "coder", "--workspace", dir).ID)
		wantAttempts(t, one, "SUCCEEDED on alpha")

		// Its allocation is replaced: the key is the node's, and so the runner the same.
		f.replace(a)
		if again := f.runner("alpha", a); again.GetId() != r.GetId() {
			t.Errorf("after its allocation was replaced the runner is %s, was %s", again.GetId(), r.GetId())
		}
		session := []string{"--session", one.GetSessionId()}
		two := f.completed(f.submit("run", "second task", session...).ID)
		wantAttempts(t, two, "SUCCEEDED on alpha")

		// In the middle of a turn the node is drained.
		id := f.submit("run", "third task", session...).ID
		await(t, "the slow answer after a checkpoint", func() error { return f.hasEvent(id, "turn.checkpoint") })
		drained := time.Now()
		if _, err := f.nomad.Root().Nodes().UpdateDrain(a.Node, &api.DrainSpec{Deadline: time.Second}, false, nil); err != nil {
			t.Fatal(err)
		}
		await(t, "Nomad's word in explain", func() error {
			x := f.must("explain", id)
			if !strings.Contains(x, "Nomad's node alpha") {
				return fmt.Errorf("%s", x)
			}
			return nil
		})
		t.Logf("bench name=nomad_drain_to_explained value=%d unit=ms", time.Since(drained).Milliseconds())
		b := f.addNode("beta")
		f.runner("beta", b)
		three := f.completed(id)
		wantAttempts(t, three, "INTERRUPTED on alpha", "SUCCEEDED on beta")
		for _, turn := range []*apiv1.Turn{one, two, three} {
			f.must("apply", turn.GetId(), "--workspace", dir)
		}
		wantFile(t, filepath.Join(dir, "log.txt"), "once\ntwice\n")

		// Power fails on a node, and comes back: Nomad runs the task again, and the runner
		// is the same.
		before := f.runner("beta", b)
		b.PowerOff(t)
		b.Start(t)
		if after := f.runner("beta", b); after.GetId() != before.GetId() {
			t.Errorf("after a reboot the runner is %s, was %s", after.GetId(), before.GetId())
		}
		if names := f.runnerNames(); !slices.Equal(names, []string{"alpha", "beta"}) {
			t.Errorf("the machines are %q", names)
		}
	})
}

// replace stops the job and runs it again, and waits until another allocation is on a
// node. (Nomad does not place an allocation of a system job anew that was stopped alone.)
func (f *fleet) replace(c *nomadserver.Client) {
	f.t.Helper()
	running := func() string {
		all, _, err := f.nomad.Root().Jobs().Allocations("bivouac-runner", false, &api.QueryOptions{Namespace: "agents"})
		if err != nil {
			f.t.Fatal(err)
		}
		for _, a := range all {
			if a.NodeID == c.Node && a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun {
				return a.ID
			}
		}
		return ""
	}
	before := running()
	if out, err := f.nomad.Run(f.t, "job", "stop", "-detach", "-namespace", "agents", "bivouac-runner"); err != nil {
		f.t.Fatalf("%v\n%s", err, out)
	}
	await(f.t, "the end of the allocation", func() error {
		if now := running(); now != "" {
			return fmt.Errorf("allocation %q", now)
		}
		return nil
	})
	f.runJob()
	await(f.t, "another allocation", func() error {
		if now := running(); now == "" || now == before {
			return fmt.Errorf("allocation %q", now)
		}
		return nil
	})
}

func (f *fleet) runnerNames() (names []string) {
	f.t.Helper()
	all, err := f.API.Runners.ListRunners(f.t.Context(), &apiv1.ListRunnersRequest{})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, r := range all.GetRunners() {
		names = append(names, r.GetName())
	}
	slices.Sort(names)
	return names
}
