package jobs_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/jobs"
)

// nodesHave lists, beside what was recorded of the one node, what it was recorded to have
// elsewhere, and a twin of it with twice the memory; kept is what each reserves.
func (r *replayer) nodesHave(t *testing.T, kept map[string]any) {
	t.Helper()
	recorded := &replayer{}
	recorded.replay(t, "allocation running")
	var has json.RawMessage
	for key, x := range recorded.all {
		if strings.HasPrefix(key, "GET /v1/node/") {
			var node struct{ NodeResources json.RawMessage }
			if err := json.Unmarshal(x.Body, &node); err != nil {
				t.Fatal(err)
			}
			has = node.NodeResources
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.all["GET /v1/nodes"]
	var nodes []map[string]any
	if err := json.Unmarshal(x.Body, &nodes); err != nil || len(nodes) != 1 || has == nil {
		t.Fatalf("%v, %d nodes, %s", err, len(nodes), has)
	}
	twin := map[string]any{}
	for name, value := range nodes[0] {
		twin[name] = value
	}
	nodes[0]["NodeResources"], nodes[0]["ReservedResources"] = has, kept
	twin["ID"], twin["Name"] = "ffffffff-7e1a-3f65-9c1e-5a2b6d7e8f90", "beta"
	twin["NodeResources"] = json.RawMessage(strings.Replace(string(has), `"MemoryMB": 24105`, `"MemoryMB": 48210`, 1))
	b, err := json.Marshal(append(nodes, twin))
	if err != nil {
		t.Fatal(err)
	}
	x.Body = b
	r.all["GET /v1/nodes?resources=true"] = x
}

// What a node has for one turn is what Nomad counts less what it keeps, what the runner's
// own task takes and what the supervisor needs; where Nomad does not say it, or said it
// long ago, it is not known.
func TestMeasuredNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replayer{}
		r.replay(t, "roster not enrolled")
		node := r.node(t)
		r.nodesHave(t, map[string]any{"Cpu": map[string]any{"CpuShares": 592}, "Memory": map[string]any{"MemoryMB": 1000}, "Disk": map[string]any{"DiskMB": 19}})
		w := watching(t, r, 50)
		synctest.Wait()
		got := w.Measured(machineOf(node))
		task := r.runnerTask(t)
		want := jobs.Room{CPUMillis: (5192-592-task.cpu)*1000/2596 - 250, MemoryBytes: (24105 - 1000 - task.memory - 256) << 20, DiskBytes: (258019 - 19 - task.disk - 64) << 20}
		if got.Most != want || got.Pool != "agents" {
			t.Errorf("%+v, want %+v", got, want)
		}
		if twin := (48210 - task.memory - 256) << 20; got.Largest.MemoryBytes != twin || got.Largest.CPUMillis != (5192-task.cpu)*1000/2596-250 {
			t.Errorf("the largest: %+v, want %d bytes", got.Largest, twin)
		}
		if got := w.Measured(machineOf("00000000-0000-0000-0000-000000000000")); got != (jobs.Measured{}) {
			t.Errorf("a node that is not listed: %+v", got)
		}
		r.setDown(true)
		time.Sleep(3 * time.Minute)
		if got := w.Measured(machineOf(node)); got != (jobs.Measured{}) {
			t.Errorf("three minutes after the last list: %+v", got)
		}
		r.setDown(false)
		r.mu.Lock()
		r.all["GET /v1/nodes?resources=true"] = r.all["GET /v1/nodes"] // as a Nomad that does not know the question
		r.mu.Unlock()
		time.Sleep(time.Minute)
		if said := w.Unknown(); said.Text != "" {
			t.Fatal(said)
		}
		if got := w.Measured(machineOf(node)); got != (jobs.Measured{}) {
			t.Errorf("Nomad does not say what there is: %+v", got)
		}
	})
}

// takes is what a job's task asks for.
type takes struct{ cpu, memory, disk int64 }

func (r *replayer) runnerTask(t *testing.T) (of takes) {
	t.Helper()
	var job struct {
		TaskGroups []struct {
			EphemeralDisk struct{ SizeMB int64 }
			Tasks         []struct {
				Name      string
				Resources struct{ CPU, MemoryMB int64 }
			}
		}
	}
	if err := json.Unmarshal(r.all["GET /v1/job/bivouac-runner?namespace=agents"].Body, &job); err != nil || len(job.TaskGroups) != 1 {
		t.Fatal(err)
	}
	g := job.TaskGroups[0]
	of = takes{g.Tasks[0].Resources.CPU, g.Tasks[0].Resources.MemoryMB, g.EphemeralDisk.SizeMB}
	if of.cpu == 0 || of.memory == 0 || of.disk == 0 || g.Tasks[0].Name != "edge" {
		t.Fatalf("%+v", g)
	}
	return of
}

// A job that its node could never hold is not made; one that it just holds is.
func TestJobLargerThanItsNode(t *testing.T) {
	for name, c := range map[string]struct {
		asks jobs.Allocation
		says string // empty: it is made
	}{
		"all of it":   {jobs.Allocation{CPUMillis: 1750, MemoryBytes: (24105 - 256) << 20, DiskBytes: (258019 - 64) << 20}, ""},
		"memory":      {jobs.Allocation{MemoryBytes: (24105-256)<<20 + 1}, "it asks 23850 MiB of memory, and node alpha of pool agents has 23849 for a turn: lower sandbox"},
		"cpu":         {jobs.Allocation{CPUMillis: 1751}, "it asks 1751 thousandths of a core, and node alpha of pool agents has 1750"},
		"disk":        {jobs.Allocation{DiskBytes: 258019 << 20}, "it asks 258019 MiB of disk, and node alpha of pool agents has 257955"},
		"more of all": {jobs.Allocation{CPUMillis: 1 << 20, MemoryBytes: 1 << 50, DiskBytes: 1 << 50}, "MiB of memory"},
	} {
		r, a := recordedAllocations(t, "allocation running", own)
		all, err := a.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		attempt, _, err := protocol.ParseAllocationJob(all[0].Job)
		if err != nil {
			t.Fatal(err)
		}
		for key := range r.all {
			if id, ok := strings.CutPrefix(key, "GET /v1/node/"); ok {
				c.asks.Machine = machineOf(id)
			}
		}
		c.asks.Job, c.asks.Attempt = all[0].Job, attempt.String()
		before := r.asked
		err = a.Start(t.Context(), c.asks)
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), c.says) || r.asked != before+1 {
			t.Errorf("%s after %d questions: %v", name, r.asked-before, err)
		}
	}
}
