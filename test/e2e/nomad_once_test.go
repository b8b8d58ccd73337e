//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/edge/state"
	"bivouac/server/api/apiv1"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// disturbance is something that Nomad, its operator or the machine does to a turn in its
// own allocation while the turn's second command waits.
type disturbance struct {
	name string
	do   func(*allocations, underway)
	// from is how somebody changes the job before Nomad places anything of it.
	from func(*api.Job)
	// placed are the allocations that Nomad makes of the attempt; zero: that depends on who
	// is faster.
	placed int
	// interrupts: the attempt ends, and another one goes on from the checkpoint. Where
	// that is Nomad's to decide, either is right.
	interrupts, either bool
}

// disturbances are those after which Nomad runs a task again, or could. Whatever it does,
// an attempt is claimed once, and its effects happen once.
var disturbances = []disturbance{
	{name: "the node's agent is killed and started again", do: func(a *allocations, _ underway) {
		a.node.Kill(a.t)
		a.node.Start(a.t)
	}},
	{name: "job eval -force-reschedule", do: func(a *allocations, u underway) {
		a.run("job", "eval", "-detach", "-force-reschedule", "-namespace", "agents", a.jobOf(u.of))
	}},
	{name: "alloc restart", interrupts: true, do: func(a *allocations, u underway) {
		a.run("alloc", "restart", "-namespace", "agents", u.by.Alloc)
	}},
	{name: "alloc stop", interrupts: true, do: func(a *allocations, u underway) {
		a.run("alloc", "stop", "-detach", "-namespace", "agents", u.by.Alloc)
	}},
	{name: "the task is killed", interrupts: true, placed: 1, do: func(a *allocations, u underway) {
		a.signal(u.by.PID, syscall.SIGKILL)
	}},
	{name: "the task fails", interrupts: true, placed: 1, do: (*allocations).taskFails},
	// Some time after the start above: a client that is killed within two seconds of its own
	// start may have kept nothing of its allocations, and ends them.
	{name: "the node's agent is away for longer than a heartbeat", placed: 1, do: func(a *allocations, _ underway) {
		a.away()
		a.node.Start(a.t)
	}},
	{name: "the node is drained and comes back", interrupts: true, do: func(a *allocations, u underway) {
		nodes := a.nomad.Root().Nodes()
		if _, err := nodes.UpdateDrain(a.node.Node, &api.DrainSpec{Deadline: time.Second}, false, nil); err != nil {
			a.t.Fatal(err)
		}
		a.over(u.by)
		if _, err := nodes.UpdateDrain(a.node.Node, nil, true, nil); err != nil {
			a.t.Fatal(err)
		}
	}},
	// What a node that is gone had is lost to Nomad, and placed anew.
	{name: "the node is purged and registers again", either: true, do: func(a *allocations, u underway) {
		if _, _, err := a.nomad.Root().Nodes().Purge(a.node.Node, nil); err != nil {
			a.t.Fatal(err)
		}
		a.placedAnew(u.of)
	}},
	// Somebody changed the job so that a lost allocation is replaced.
	{name: "the job is changed to be replaced, and its node is lost", either: true, do: func(a *allocations, u underway) {
		a.change(a.jobOf(u.of), func(j *api.Job) { j.TaskGroups[0].Disconnect = nil })
		a.away()
		a.node.Start(a.t)
		a.placedAnew(u.of)
	}},
	{name: "Nomad is away", do: func(a *allocations, _ underway) {
		a.nomad.Stop(a.t)
		a.nomad.Start(a.t)
		a.nodeIs(api.NodeStatusReady)
	}},
	{name: "the power fails", interrupts: true, do: func(a *allocations, _ underway) {
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
		for _, d := range slices.Concat(disturbances, []disturbance{{name: "nothing", placed: 1}}, replacements) {
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
	u := a.begunAs(d.from)
	placed := a.counted(u.of.ID)
	if d.do != nil {
		d.do(a, u)
	}
	if d.interrupts {
		a.over(u.by)
		a.waits(u.turn) // in another allocation
	}
	done := a.goesOn(u.turn)
	a.judged(done, u.of, d)
	if n := placed(); d.placed != 0 && n != d.placed {
		a.t.Errorf("Nomad made %d allocations of attempt %s, want %d", n, u.of.ID, d.placed)
	}
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
	a.nothingBeside()
}

// counted counts the allocations of an attempt while it is underway, until the returned
// function is called: with the purge of a job Nomad forgets those that it had.
func (a *allocations) counted(of protocol.AttemptID) func() int {
	ctx, stop := context.WithCancel(a.t.Context())
	ids, done := map[string]bool{}, make(chan struct{})
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; op.Sleep(ctx, 50*time.Millisecond) {
			all, _ := a.listed(of) // Nomad may be away
			for _, s := range all {
				ids[s.ID] = true
			}
		}
	}()
	return func() int { stop(); <-done; return len(ids) }
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

// change registers a job of an attempt again, as whoever may change jobs can, and waits
// until what there is of it is of the changed one.
func (a *allocations) change(id string, how func(*api.Job)) {
	a.t.Helper()
	jobs, q := a.nomad.Root().Jobs(), &api.QueryOptions{Namespace: "agents"}
	job, _, err := jobs.Info(id, q)
	if err == nil {
		how(job)
		_, _, err = jobs.Register(job, &api.WriteOptions{Namespace: "agents"})
	}
	if err != nil {
		a.t.Fatal(err)
	}
	await(a.t, "the change of job "+id, func() error {
		all, _, err := jobs.Allocations(id, false, q)
		for _, s := range all {
			if s.JobVersion <= *job.Version {
				return fmt.Errorf("allocation %s is of version %d", s.ID, s.JobVersion)
			}
		}
		return err
	})
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
