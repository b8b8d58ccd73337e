//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/state"
	"bivouac/server/api/apiv1"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// disturbance is something that Nomad, its operator or the machine does to a turn in its
// own allocation while the turn's second command waits.
type disturbance struct {
	name string
	do   func(a *allocations, of state.Attempt, by state.Mark)
	// interrupts: the attempt ends, and another one goes on from the checkpoint. Where
	// that is Nomad's to decide, either is right.
	interrupts, either bool
}

// disturbances are those after which Nomad runs a task again, or could. Whatever it does,
// an attempt is claimed once, and its effects happen once.
var disturbances = []disturbance{
	{name: "the node's agent is killed and started again", do: func(a *allocations, _ state.Attempt, _ state.Mark) {
		a.node.Kill(a.t)
		a.node.Start(a.t)
	}},
	{name: "job eval -force-reschedule", do: func(a *allocations, of state.Attempt, _ state.Mark) {
		a.run("job", "eval", "-detach", "-force-reschedule", "-namespace", "agents", a.jobOf(of))
	}},
	{name: "alloc restart", interrupts: true, do: func(a *allocations, _ state.Attempt, by state.Mark) {
		a.run("alloc", "restart", "-namespace", "agents", by.Alloc)
	}},
	{name: "alloc stop", interrupts: true, do: func(a *allocations, _ state.Attempt, by state.Mark) {
		a.run("alloc", "stop", "-detach", "-namespace", "agents", by.Alloc)
	}},
	{name: "the task is killed", interrupts: true, do: func(a *allocations, _ state.Attempt, by state.Mark) {
		a.signal(by.PID, syscall.SIGKILL)
	}},
	// Some time after the start above: a client that is killed within two seconds of its own
	// start may have kept nothing of its allocations, and ends them.
	{name: "the node's agent is away for longer than a heartbeat", do: func(a *allocations, _ state.Attempt, _ state.Mark) {
		a.away()
		a.node.Start(a.t)
	}},
	{name: "the node is drained and comes back", interrupts: true, do: func(a *allocations, _ state.Attempt, by state.Mark) {
		nodes := a.nomad.Root().Nodes()
		if _, err := nodes.UpdateDrain(a.node.Node, &api.DrainSpec{Deadline: time.Second}, false, nil); err != nil {
			a.t.Fatal(err)
		}
		a.over(by)
		if _, err := nodes.UpdateDrain(a.node.Node, nil, true, nil); err != nil {
			a.t.Fatal(err)
		}
	}},
	// What a node that is gone had is lost to Nomad, and placed anew.
	{name: "the node is purged and registers again", either: true, do: func(a *allocations, of state.Attempt, _ state.Mark) {
		if _, _, err := a.nomad.Root().Nodes().Purge(a.node.Node, nil); err != nil {
			a.t.Fatal(err)
		}
		a.placedAnew(of)
	}},
	// Somebody changed the job so that a lost allocation is replaced.
	{name: "the job is changed to be replaced, and its node is lost", either: true, do: func(a *allocations, of state.Attempt, _ state.Mark) {
		a.change(of, func(g *api.TaskGroup) { g.Disconnect = nil })
		a.away()
		a.node.Start(a.t)
		a.placedAnew(of)
	}},
	{name: "Nomad is away", do: func(a *allocations, _ state.Attempt, _ state.Mark) {
		a.nomad.Stop(a.t)
		a.nomad.Start(a.t)
		a.nodeIs(api.NodeStatusReady)
	}},
	{name: "the power fails", interrupts: true, do: func(a *allocations, _ state.Attempt, _ state.Mark) {
		a.node.PowerOff(a.t)
		a.node.Start(a.t)
		a.runner("alpha", a.node)
	}},
}

// INV-14: whatever Nomad, its operators and its nodes do, an attempt is claimed by one
// process, once; what it does is done once, and a turn that is interrupted goes on from
// its checkpoint in another allocation.
func TestNomadRunsAnAttemptOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries, and runs a real Nomad")
	}
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		a := newAllocations(t, p)
		for _, d := range append(disturbances, disturbance{name: "nothing"}) {
			t.Run(d.name, func(t *testing.T) {
				defer a.on(t)()
				a.disturbed(d)
			})
		}
		t.Run("the node is lost before the task began", func(t *testing.T) {
			defer a.on(t)()
			a.placedBeforeTheNodeIsLost()
		})
	})
}

// on makes a test the one of what follows, until the returned function is called.
func (a *allocations) on(t *testing.T) func() {
	before := a.t
	a.t = t
	return func() { a.t = before }
}

// disturbed runs one turn, disturbed in its middle, to its end.
func (a *allocations) disturbed(d disturbance) {
	a.t.Helper()
	began, asked := time.Now(), len(receivedBy(a.Stack, "append"))
	turn, of, by := a.begun()
	if d.do != nil {
		d.do(a, of, by)
	}
	if d.interrupts {
		a.over(by)
	}
	done := a.goesOn(turn)
	a.judged(done, of, d)
	a.once(done, asked)
	a.t.Logf("%d attempt(s), %v", len(done.GetAttempts()), time.Since(began).Round(time.Second))
}

func (a *allocations) judged(done *apiv1.Turn, of state.Attempt, d disturbance) {
	a.t.Helper()
	switch at := done.GetAttempts(); {
	case d.either && len(at) == 1:
		wantAttempts(a.t, done, "SUCCEEDED on alpha")
	case d.interrupts, d.either:
		wantAttempts(a.t, done, "INTERRUPTED on alpha", "SUCCEEDED on alpha")
	default:
		wantAttempts(a.t, done, "SUCCEEDED on alpha")
	}
	await(a.t, "the end of the attempt's directory (INV-18)", func() error {
		if of.Exists() {
			return fmt.Errorf("%s: that of %s is left", d.name, of.ID)
		}
		return nil
	})
}

// placedBeforeTheNodeIsLost: an allocation that has not started when its node is
// lost is placed anew, and what was placed first starts too, when the node comes back.
func (a *allocations) placedBeforeTheNodeIsLost() {
	a.t.Helper()
	asked := len(receivedBy(a.Stack, "append"))
	agent := a.agentPID()
	a.signal(agent, syscall.SIGSTOP)
	defer a.signal(agent, syscall.SIGCONT)
	turn := a.submit("run", "append two lines", "--agent", "coder", "--workspace", a.project).ID
	a.nodeIs(api.NodeStatusDown, api.NodeStatusDisconnected)
	a.signal(agent, syscall.SIGCONT)
	a.nodeIs(api.NodeStatusReady)
	done := a.goesOn(turn)
	wantAttempts(a.t, done, "SUCCEEDED on alpha")
	a.once(done, asked)
}

// away kills the node's agent and waits until Nomad has noticed. What it started runs on.
func (a *allocations) away() {
	a.t.Helper()
	a.node.Kill(a.t)
	a.nodeIs(api.NodeStatusDown, api.NodeStatusDisconnected)
}

func (a *allocations) nodeIs(one ...string) {
	a.t.Helper()
	await(a.t, "the node's state "+strings.Join(one, " or "), func() error {
		n, _, err := a.nomad.Root().Nodes().Info(a.node.Node, nil)
		if err == nil && !slices.Contains(one, n.Status) {
			err = errors.New("it is " + n.Status)
		}
		return err
	})
}

// over waits for the end of a supervisor.
func (a *allocations) over(by state.Mark) {
	a.t.Helper()
	await(a.t, "the end of the supervisor", func() error {
		if by.Alive() {
			return fmt.Errorf("process %d lives\n%s", by.PID, a.logs())
		}
		return nil
	})
}

// jobOf an attempt that runs.
func (a *allocations) jobOf(of state.Attempt) string {
	a.t.Helper()
	has, ok := of.Allocation()
	if !ok {
		a.t.Fatalf("attempt %s has no allocation", of.ID)
	}
	return has.Job
}

// placedAnew waits until Nomad has another allocation of the attempt's job, or the job was
// ended.
func (a *allocations) placedAnew(of state.Attempt) {
	a.t.Helper()
	await(a.t, "another allocation", func() error {
		if all := a.allocsOf(of.ID); len(all) < 2 && of.Exists() {
			return fmt.Errorf("there are %d", len(all))
		}
		return nil
	})
}

// change registers the attempt's job again, as whoever may change jobs can.
func (a *allocations) change(of state.Attempt, how func(*api.TaskGroup)) {
	a.t.Helper()
	jobs, q := a.nomad.Root().Jobs(), &api.QueryOptions{Namespace: "agents"}
	job, _, err := jobs.Info(a.jobOf(of), q)
	if err == nil {
		how(job.TaskGroups[0])
		_, _, err = jobs.Register(job, &api.WriteOptions{Namespace: "agents"})
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// run is a command of Nomad's own.
func (a *allocations) run(args ...string) {
	a.t.Helper()
	if out, err := a.nomad.Run(a.t, args...); err != nil {
		a.t.Fatalf("%v\n%s", err, out)
	}
}

// agentPID is the process of the node's agent.
func (a *allocations) agentPID() int {
	a.t.Helper()
	pids := processes(a.t, func(argv []string) bool {
		return len(argv) > 2 && slices.Contains(argv, "agent") && argv[len(argv)-1] == a.node.Path()+".hcl"
	})
	if len(pids) != 1 {
		a.t.Fatalf("the node's agent is %v", pids)
	}
	return pids[0]
}

func (a *allocations) signal(pid int, sig syscall.Signal) {
	a.t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		a.t.Fatal(err)
	}
}
