package jobs_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// drain has the replayed node drained, as Nomad says it in its list and of the node itself.
func (r *replayer) drain(t *testing.T, strategy map[string]any) {
	t.Helper()
	node := r.node(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, x := range r.all {
		if !strings.HasPrefix(key, "GET /v1/nodes") {
			continue
		}
		var nodes []map[string]any
		if err := json.Unmarshal(x.Body, &nodes); err != nil {
			t.Fatal(err)
		}
		nodes[0]["Drain"], nodes[0]["SchedulingEligibility"] = true, "ineligible"
		var err error
		if x.Body, err = json.Marshal(nodes); err != nil {
			t.Fatal(err)
		}
		r.all[key] = x
		if strategy == nil {
			return
		}
		whole, err := json.Marshal(map[string]any{"ID": node, "DrainStrategy": strategy})
		if err != nil {
			t.Fatal(err)
		}
		r.all["GET /v1/node/"+node] = exchange{Method: "GET", Status: 200, Header: x.Header, Body: whole}
		return
	}
	t.Fatal("no list of nodes was recorded")
}

// A runner on a node that is drained is not said to run and nothing else: until when, and
// what becomes of attempts there, stand beside it, with what ends the drain.
func TestRunnerOnADrainedNode(t *testing.T) {
	for name, c := range map[string]struct {
		strategy map[string]any
		says     []string
	}{
		"deadline": {map[string]any{"Deadline": int64(time.Hour), "ForceDeadline": "2026-11-30T18:00:00Z"},
			[]string{"until 2026-11-30T18:00:00Z at the latest (its deadline)", "allocations of their own go on until then", "goes on elsewhere from its last checkpoint"}},
		"no deadline": {map[string]any{"Deadline": 0, "ForceDeadline": "0001-01-01T00:00:00Z"}, []string{"without a deadline", "go on to their end"}},
		"by force":    {map[string]any{"Deadline": -1, "ForceDeadline": "0001-01-01T00:00:00Z"}, []string{"by force", "at once"}},
		"not told":    {nil, []string{"nothing new begins there", "go on elsewhere from their last checkpoints"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := &replayer{}
			r.replay(t, "roster not enrolled")
			r.drain(t, c.strategy)
			w := watching(t, r, 0)
			synctest.Wait()
			absent := w.Absent(tenant, nil, "ops")
			node, _ := w.Standing(machineOf(r.node(t)))
			for _, want := range append(c.says, "Nomad's node alpha is being drained") {
				if !strings.Contains(absent.Text, want) || !strings.Contains(node.Text, want) {
					t.Errorf("%s: absent %q, node %q lack %q", name, absent.Text, node.Text, want)
				}
			}
			if strings.Contains(absent.Text, "it runs") || !strings.Contains(absent.Remedy, "nomad node drain -disable") {
				t.Errorf("%s: %+v", name, absent)
			}
		})
	}
}
