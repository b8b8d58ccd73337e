//go:build linux

package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

var figures = flag.Int("figures", 2, "turns for each figure of TestNomadFigures")

// How long a turn takes from its activation to the first instruction of its first command
// on runners that Nomad starts: on a warm slot, and in an allocation of its own, where
// what Nomad itself takes from a registration to a running task is taken off. Figures are
// printed, and held against nothing.
func TestNomadFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries, and runs a real Nomad")
	}
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		f := newFleet(t, p, stack.Config{Script: figuresScript, Agents: figuresAgents()})
		f.runJob()
		f.runner("alpha", f.addNode("alpha"))
		kinds := map[turnKind][]time.Duration{}
		var bare []time.Duration
		for i := range *figures {
			for _, k := range []turnKind{warmSlot, ownAllocation} {
				kinds[k] = append(kinds[k], f.startLatency(k, i))
			}
			bare = append(bare, f.registerToRunning(i))
		}
		nomad, own := median(bare), median(kinds[ownAllocation])
		for _, line := range []struct {
			name   string
			value  time.Duration
			target time.Duration
		}{
			{"nomad_warm_start_p50", median(kinds[warmSlot]), 150 * time.Millisecond},
			{"nomad_register_to_running_p50", nomad, 0},
			{"nomad_allocation_start_p50", own, 0},
			{"nomad_allocation_over_nomad_p50", own - nomad, 100 * time.Millisecond},
		} {
			held := ""
			if line.target > 0 {
				held = fmt.Sprintf(" target=%d ok=%t", line.target.Milliseconds(), line.value <= line.target)
			}
			fmt.Printf("bench name=%s value=%d unit=ms%s\n", line.name, line.value.Milliseconds(), held)
		}
	})
}

// figuresAgents are the two of the engines' tests, each with one core: with less, the start
// of a worker takes as long as its control group makes it wait.
func figuresAgents() (all []string) {
	for _, a := range enginesAgents()[:2] {
		all = append(all, strings.Replace(a, "cpu_millis = 300", "cpu_millis = 1000", 1))
	}
	return all
}

const figuresScript = `
rule "first instruction" {
  when {
    user_contains = "what time is it"
    results       = 0
  }
  call "shell" { arguments = { command = "date +%s%N > began" } }
}
rule "answer" {
  text = "done"
}
`

// startLatency of one turn.
func (f *fleet) startLatency(k turnKind, n int) time.Duration {
	f.t.Helper()
	dir := f.project(fmt.Sprintf("%s-%d", k.agent, n), map[string]string{"README": "a project\n"})
	turn := f.completed(f.submit("run", "what time is it", "--agent", k.agent, "--workspace", dir).ID)
	f.must("apply", turn.GetId(), "--workspace", dir)
	b, err := os.ReadFile(filepath.Join(dir, "began"))
	if err != nil {
		f.t.Fatal(err)
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		f.t.Fatal(err)
	}
	return time.Unix(0, ns).Sub(turn.GetActivatedAt().AsTime())
}

// registerToRunning is what Nomad takes for a job of one task that does nothing.
func (f *fleet) registerToRunning(n int) time.Duration {
	f.t.Helper()
	task := api.NewTask("task", "raw_exec").SetConfig("command", "/bin/true")
	group := api.NewTaskGroup("group", 1).AddTask(task)
	job := api.NewBatchJob(fmt.Sprintf("nothing-%d", n), fmt.Sprintf("nothing-%d", n), "global", 50).AddTaskGroup(group)
	namespace, pool := "agents", "agents"
	job.Namespace, job.NodePool, job.Datacenters = &namespace, &pool, []string{"*"}
	began := time.Now()
	if _, _, err := f.nomad.Root().Jobs().EnforceRegister(job, 0, nil); err != nil {
		f.t.Fatal(err)
	}
	var started time.Time
	await(f.t, "the task's start", func() error {
		all, _, err := f.nomad.Root().Jobs().Allocations(*job.ID, false, &api.QueryOptions{Namespace: namespace})
		if err != nil {
			return err
		}
		for _, a := range all {
			state := a.TaskStates["task"]
			if state == nil {
				continue
			}
			for _, e := range state.Events {
				if e.Type == api.TaskStarted {
					started = time.Unix(0, e.Time)
					return nil
				}
			}
		}
		return fmt.Errorf("%d allocations", len(all))
	})
	return started.Sub(began)
}

func median(d []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(d))[len(d)/2]
}
