//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/protocol"
)

// stopOnClientAfter is well above the time between two heartbeats of a client.
const stopOnClientAfter = 20 * time.Second

// replacements are what follows when somebody changed the job of an attempt so that Nomad
// gives up what it does not see and places it anew, on whatever node: what is placed there
// runs beside the supervisor that has the attempt, and does nothing.
var replacements = []disturbance{
	{name: "the job is changed to be lost with its node at once", interrupts: true, placed: 2,
		do: lost(api.DisconnectStrategy{Replace: new(false)})},
	{name: "the job is changed to be lost some time after its node", interrupts: true, placed: 2,
		do: lost(api.DisconnectStrategy{Replace: new(false), LostAfter: new(5 * time.Second)})},
	{name: "the job is to be stopped by a client that is cut off, and replaced", interrupts: true, placed: 2,
		from: stoppedOnClient, do: (*allocations).frozen},
	// The client ends the task alone, before anybody could tell it to.
	{name: "the job is to be stopped by a client that is cut off, and Nomad is away", interrupts: true,
		from: stoppedOnClient, do: func(a *allocations, u underway) {
			a.nomad.Stop(a.t)
			a.over(u.by)
			a.nomad.Start(a.t)
			a.nodeIs(api.NodeStatusReady)
		}},
}

// stoppedOnClient has a client end the task that does not reach Nomad for a while. A
// client takes that from the job with which the task began.
func stoppedOnClient(j *api.Job) {
	g := j.TaskGroups[0]
	g.Disconnect = &api.DisconnectStrategy{Replace: new(false), StopOnClientAfter: new(stopOnClientAfter)}
	g.Tasks[0].KillTimeout = new(5 * time.Second) // Nomad waits for it too, before it replaces
}

// anywhere lets a job be placed on any node of its pool.
func anywhere(j *api.Job) { j.Constraints = nil }

// lost changes the job of an attempt that runs, and takes its node out of Nomad's sight
// until another one has the job too.
func lost(with api.DisconnectStrategy) func(*allocations, underway) {
	return func(a *allocations, u underway) {
		a.besides()
		a.change(a.jobOf(u.of), func(j *api.Job) {
			anywhere(j)
			j.TaskGroups[0].Disconnect = &with
		})
		a.away()
		a.replaced(u)
		a.node.Start(a.t)
	}
}

// frozen stops the node's agent in its place until another node has the job: it can
// neither say that it lives nor end anything.
func (a *allocations) frozen(u underway) {
	a.t.Helper()
	a.besides()
	a.change(a.jobOf(u.of), anywhere)
	agent := a.agentPID()
	a.signal(agent, syscall.SIGSTOP)
	defer a.signal(agent, syscall.SIGCONT)
	a.nodeIs(api.NodeStatusDown, api.NodeStatusDisconnected)
	a.replaced(u)
	a.signal(agent, syscall.SIGCONT)
	a.nodeIs(api.NodeStatusReady)
}

// taskFails has the supervisor end with an exit code that is none of its own, which Nomad
// says of a task that failed, and does not run again.
func (a *allocations) taskFails(u underway) {
	a.t.Helper()
	a.signal(u.by.PID, syscall.SIGQUIT)
	await(a.t, "Nomad's word that the task failed", func() error {
		alloc, _, err := a.nomad.Root().Allocations().Info(u.by.Alloc, &api.QueryOptions{Namespace: "agents"})
		if err == nil && alloc.ClientStatus != api.AllocClientStatusFailed {
			err = errors.New("it is " + alloc.ClientStatus)
		}
		return err
	})
}

// begunAs is begun for a job that somebody changes before Nomad places anything of it.
func (a *allocations) begunAs(how func(*api.Job)) underway {
	a.t.Helper()
	if how == nil {
		return a.begun()
	}
	a.scheduling(false)
	defer a.scheduling(true)
	turn, job := a.begin(), ""
	await(a.t, "the job of turn "+turn, func() error {
		at := a.turn(turn).GetAttempts()
		if len(at) == 0 {
			return errors.New("it has no attempt")
		}
		job = protocol.AllocationJob(protocol.AttemptID(at[0].GetId()), 1)
		_, _, err := a.nomad.Root().Jobs().Info(job, &api.QueryOptions{Namespace: "agents"})
		return err
	})
	a.change(job, how)
	a.scheduling(true)
	return a.waits(turn)
}

// scheduling lets Nomad place what is to be placed, or keeps it from that.
func (a *allocations) scheduling(on bool) {
	a.t.Helper()
	operator := a.nomad.Root().Operator()
	is, _, err := operator.SchedulerGetConfiguration(nil)
	if err == nil {
		is.SchedulerConfig.PauseEvalBroker = !on
		_, _, err = operator.SchedulerSetConfiguration(is.SchedulerConfig, nil)
	}
	if err != nil {
		a.t.Error(err)
	}
}

// besides has another node run, with a runner that takes no turns: what runs there of a
// turn was placed there by Nomad alone.
func (a *allocations) besides() {
	a.t.Helper()
	if a.beside != nil {
		return
	}
	if err := os.MkdirAll(filepath.Join(a.state, "beta"), 0o700); err != nil {
		a.t.Fatal(err)
	}
	a.write(filepath.Join(a.state, "beta", "edge.hcl"), "slots = 0\n", 0o600)
	a.beside = a.addNode("beta")
	a.runner("beta", a.beside)
}

// replaced waits until Nomad has given up the allocation that has the attempt, and runs
// another one on the other node. The attempt is then what it was, and so are the words
// on it: it is not said to have ended, or to run elsewhere.
func (a *allocations) replaced(u underway) {
	a.t.Helper()
	await(a.t, "the loss of the allocation, and another one", func() error {
		states := map[string]string{}
		for _, s := range a.allocsOf(u.of.ID) {
			states[s.NodeID] += s.ClientStatus
		}
		if states[a.node.Node] != api.AllocClientStatusLost || states[a.beside.Node] != api.AllocClientStatusRunning {
			return fmt.Errorf("on alpha it is %q, and on beta %q", states[a.node.Node], states[a.beside.Node])
		}
		return nil
	})
	a.explains(u.turn, "Nomad lost it with its node", "placed it again, on node beta")
	if now, _, err := u.of.Mark(); err != nil || now.BootNonce != u.by.BootNonce || !u.by.Alive() {
		a.t.Errorf("while Nomad runs it elsewhere its supervisor is %+v, %v; was %+v", now, err, u.by)
	}
	wantAttempts(a.t, a.turn(u.turn), "RUNNING on alpha")
}

// nothingBeside: no attempt was ever on the other node.
func (a *allocations) nothingBeside() {
	a.t.Helper()
	if a.beside == nil {
		return
	}
	if left, err := a.stateOf(a.beside).Attempts(); err != nil || len(left) != 0 {
		a.t.Errorf("on the other node are the attempts %v, %v", left, err)
	}
}
