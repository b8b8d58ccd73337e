//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
	"bivouac/server/api/apiv1"
	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

const allocationAgent = `
agent "coder" {
  profile       = "coding"
  placement     = "runner"
  allocation    = "own"
  data_boundary = "internal"
  trust         = "trusted"
  instructions  = "You change files."
  model { route = "scripted" }
  sandbox_tools = ["shell"]
  sandbox {
    cpu_millis = 300
    memory     = "256MiB"
    disk       = "64MiB"
  }
  lease {
    authority_ttl = "5s"
    retention     = "40s"
  }
}
`

// A turn appends a line, which is a checkpoint, waits until the test lets it go on, and
// appends another one.
const allocationScript = `
rule "append" {
  when {
    user_contains = "append two lines"
    results       = 0
  }
  call "shell" { arguments = { command = "echo once >> log.txt" } }
}
rule "wait" {
  when {
    user_contains = "append two lines"
    results       = 1
  }
  call "shell" { arguments = { command = "touch waits; while ! test -e go; do sleep 0.1; done; rm -f go waits; echo twice >> log.txt" } }
}
rule "done" {
  when {
    user_contains = "append two lines"
    results       = 2
  }
  text = "ANSWER: both lines are there."
}
`

// allocations is a fleet of one node, alpha, on which each turn has an allocation of its own.
type allocations struct {
	*fleet
	node    *nomadserver.Client
	dir     *state.Dir          // of the node's runner
	beside  *nomadserver.Client // the other node; nil until somebody needs it
	project string
}

func newAllocations(t *testing.T, p engine.Program) *allocations {
	t.Helper()
	a := &allocations{fleet: newFleet(t, p, stack.Config{Script: allocationScript, Agents: []string{allocationAgent}})}
	a.node = a.addNode("alpha")
	a.runJob()
	a.runner("alpha", a.node)
	a.dir = a.stateOf(a.node)
	a.project = a.fleet.project("project", map[string]string{"README": "a project\n"})
	return a
}

// stateOf a node's runner.
func (f *fleet) stateOf(c *nomadserver.Client) *state.Dir {
	f.t.Helper()
	dir, err := state.Open(filepath.Join(f.state, c.Name))
	if err != nil {
		f.t.Fatal(err)
	}
	return dir
}

// underway is a turn whose second command waits, its attempt, and who supervises that.
type underway struct {
	turn string
	of   state.Attempt
	by   state.Mark
}

func (a *allocations) begun() underway { a.t.Helper(); return a.waits(a.begin()) }

// begin submits a turn.
func (a *allocations) begin() string {
	a.t.Helper()
	return a.submit("run", "append two lines", "--agent", "coder", "--workspace", a.project).ID
}

// waits until the second command of a turn waits somewhere.
func (a *allocations) waits(turn string) (u underway) {
	a.t.Helper()
	await(a.t, "the second command of turn "+turn, func() error {
		for _, one := range a.runs(turn) {
			if _, err := os.Lstat(one.file("waits")); err == nil {
				u = underway{turn, one.Attempt, one.mark}
				return nil
			}
		}
		return fmt.Errorf("it is %s\n%s", a.must("explain", turn), a.logs())
	})
	return u
}

// running is an attempt on the node, and the process that has it.
type running struct {
	state.Attempt
	mark state.Mark
}

// file of its workspace, as its supervisor sees it: the volume is that one's alone.
func (r running) file(name string) string {
	return filepath.Join("/proc", strconv.Itoa(r.mark.PID), "root", r.Path(), "work", "files", "workspace", name)
}

// runs are the attempts of a turn that somebody has.
func (a *allocations) runs(turn string) (all []running) {
	for _, at := range a.turn(turn).GetAttempts() {
		d := a.dir.Attempt(protocol.AttemptID(at.GetId()))
		if m, ok, err := d.Mark(); err == nil && ok && m.Alive() {
			all = append(all, running{d, m})
		}
	}
	return all
}

// goesOn lets whatever waits go on until the turn is completed.
func (a *allocations) goesOn(turn string) *apiv1.Turn {
	a.t.Helper()
	await(a.t, "the end of turn "+turn, func() error {
		if a.turn(turn).GetEndedAt() != nil {
			return nil
		}
		for _, one := range a.runs(turn) {
			if _, err := os.Lstat(one.file("waits")); err == nil {
				_ = os.WriteFile(one.file("go"), nil, 0o666) // it may end just now
			}
		}
		return fmt.Errorf("it is %s\n%s", a.must("explain", turn), a.logs())
	})
	return a.completed(turn)
}

// logs of everything on the node.
func (a *allocations) logs() string {
	text := a.node.Log() + a.node.TaskLog("*", "edge")
	dirs, _ := a.dir.Attempts() // for a message
	for _, d := range dirs {
		b, _ := os.ReadFile(d.Log())
		text += d.ID.String() + ":\n" + string(b)
	}
	return text
}

// once holds a turn to what was promised: it was claimed once an attempt, each step was
// asked for once a checkpoint, and its change is made once. INV-14.
func (a *allocations) once(turn *apiv1.Turn, asked int) {
	a.t.Helper()
	said := a.node.TaskLog("*", "edge")
	if a.beside != nil {
		said += a.beside.TaskLog("*", "edge")
	}
	for _, at := range turn.GetAttempts() {
		if n := strings.Count(said, `msg="an allocation has its supervisor" attempt=`+at.GetId()); n != 1 {
			a.t.Errorf("attempt %s was claimed %d times", at.GetId(), n)
		}
	}
	if n := len(receivedBy(a.Stack, "append")) - asked; n != 1 {
		a.t.Errorf("the first step was asked for %d times", n)
	}
	out := filepath.Join(a.home, turn.GetId())
	if err := os.CopyFS(out, os.DirFS(a.project)); err != nil {
		a.t.Fatal(err)
	}
	a.must("apply", turn.GetId(), "--workspace", out)
	wantFile(a.t, filepath.Join(out, "log.txt"), "once\ntwice\n")
}

// allocsOf an attempt, of all the jobs that it has and that were not purged.
func (a *allocations) allocsOf(of protocol.AttemptID) []*api.AllocationListStub {
	a.t.Helper()
	all, err := a.listed(of)
	if err != nil {
		a.t.Fatal(err)
	}
	return all
}

func (a *allocations) listed(of protocol.AttemptID) (all []*api.AllocationListStub, err error) {
	for n := 1; n < 10; n++ {
		some, _, err := a.nomad.Root().Jobs().Allocations(protocol.AllocationJob(of, n), true, &api.QueryOptions{Namespace: "agents"})
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// A turn of an agent with allocation = "own" is a job of Nomad, on the runner's node, with
// the definition's limits: its one task is the supervisor, and the runner's daemon is found
// again by it, and finds it.
func TestNomadAllocation(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries, and runs a real Nomad")
	}
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		a := newAllocations(t, p)
		asked := time.Now()
		u := a.begun()
		of, by := u.of, u.by
		t.Logf("bench name=nomad_allocation_submit_to_second_command value=%d unit=ms", time.Since(asked).Milliseconds())
		allocs := a.allocsOf(of.ID)
		if len(allocs) != 1 || allocs[0].ID != by.Alloc || allocs[0].ClientStatus != api.AllocClientStatusRunning || allocs[0].NodeID != a.node.Node {
			t.Errorf("Nomad has %v, and allocation %s runs", allocs, by.Alloc)
		}
		alloc, _, err := a.nomad.Root().Allocations().Info(by.Alloc, &api.QueryOptions{Namespace: "agents"})
		if err != nil {
			t.Fatal(err)
		}
		spec, err := json.Marshal(alloc.Job)
		if task := alloc.Job.TaskGroups[0].Tasks[0]; err != nil || *task.Resources.MemoryMB < 256 || !*task.LogConfig.Disabled || strings.Contains(string(spec), "srv_") {
			t.Errorf("the task is %+v, %v", task, err)
		}
		if s := a.edgeStatus(); !strings.Contains(s, "running") || !strings.Contains(s, allocs[0].JobID) {
			t.Errorf("the owner of the machine is told %s", s)
		}

		// The runner's own task is replaced: the turn runs on, and is found again.
		a.replace(a.node)
		a.runner("alpha", a.node)
		if now, _, err := of.Mark(); err != nil || now.BootNonce != by.BootNonce || !by.Alive() {
			t.Errorf("after the runner was replaced its supervisor is %+v, %v; was %+v", now, err, by)
		}
		ended := a.endOf(by.Alloc)
		done := a.goesOn(u.turn)
		wantAttempts(t, done, "SUCCEEDED on alpha")
		a.once(done, 0)
		if said := <-ended; said != "complete, exit code 0, signal 0" {
			t.Errorf("for Nomad its task ended so: %s", said)
		}
		await(t, "the end of the task", func() error {
			all := a.allocsOf(of.ID)
			if i := slices.IndexFunc(all, func(s *api.AllocationListStub) bool { return s.ClientStatus != api.AllocClientStatusComplete }); i >= 0 {
				return fmt.Errorf("allocation %s is %s", all[i].ID, all[i].ClientStatus)
			}
			return nil
		})
		if of.Exists() {
			t.Error("its directory is left (INV-18)")
		}
	})
}

// endOf says how the task of an allocation ended, as Nomad tells it until the job is removed.
func (a *allocations) endOf(alloc string) <-chan string {
	said := make(chan string, 1)
	go func() {
		last := "nobody knows"
		defer func() { said <- last }()
		for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			is, _, err := a.nomad.Root().Allocations().Info(alloc, &api.QueryOptions{Namespace: "agents"})
			if err != nil {
				last += ", " + err.Error()
				return
			}
			if !is.ClientTerminalStatus() {
				continue
			}
			last = is.ClientStatus
			for _, task := range is.TaskStates {
				for _, e := range task.Events {
					if e.Type == api.TaskTerminated {
						last += fmt.Sprintf(", exit code %d, signal %d", e.ExitCode, e.Signal)
					}
				}
			}
			return
		}
	}()
	return said
}

// edgeStatus is what the machine's owner sees.
func (a *allocations) edgeStatus() string {
	a.t.Helper()
	out, err := exec.Command(a.Program("bivouac-edge"), "status", "--state", a.dir.Path()).CombinedOutput()
	if err != nil {
		a.t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
