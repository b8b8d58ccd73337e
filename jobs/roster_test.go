package jobs_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"bivouac/jobs"
)

// unplaced are states in which Nomad runs no runner, as they were recorded, and what is
// said of each to who should have one.
var unplaced = []struct {
	name, says, remedy string
}{
	{"no job", "no job bivouac-runner in namespace agents", "nomad job run"},
	{"no node", "node pool agents, in which Nomad is to run them, has no node", "node_pool = \"agents\""},
	{"no volume", "on its node alpha: it has not the host volume", "host_volume \"bivouac-edge\""},
	{"no driver", "on its node alpha: raw_exec is not enabled there", "plugin \"raw_exec\""},
	{"no room", "on its node alpha: it has not enough left of: memory", "nomad node status"},
	{"no match", "on its node alpha: it does not meet what the job asks of nodes: ${attr.kernel.name} = plan9", "nomad node status"},
	{"not eligible", "no node of node pool agents takes a runner: Nomad's node alpha takes nothing new", "nomad node eligibility -enable"},
	{"begins and fails", "is on Nomad's node alpha: it failed on its node", "nomad alloc status"},
	{"not enrolled", "is on Nomad's node alpha: it runs, and has not enrolled yet", "nomad alloc logs -stderr -namespace agents"},
	{"job stopped", "job bivouac-runner in namespace agents, which is to run them, was stopped", "nomad job run"},
}

// saidOf reports what is not as it should be said.
func saidOf(s jobs.Standing, says, remedy string) string {
	if !strings.Contains(s.Text, says) || !strings.Contains(s.Remedy, remedy) {
		return s.Text + " (" + s.Remedy + "), want " + says + " (" + remedy + ")"
	}
	return ""
}

// What a real Nomad answered in each state is said in our words, to the principal of the
// rule and to nobody else (INV-9).
func TestRecordedRosters(t *testing.T) {
	for _, state := range unplaced {
		synctest.Test(t, func(t *testing.T) {
			r := &replayer{}
			r.replay(t, "roster "+state.name)
			w := watching(t, r, 0)
			synctest.Wait()
			if bad := saidOf(w.Absent(tenant, nil, "prn_1", "ops"), state.says, state.remedy); bad != "" {
				t.Errorf("%s: %s", state.name, bad)
			}
			if s := w.Absent(tenant, nil, "prn_2", "eve"); s != (jobs.Standing{}) {
				t.Errorf("%s: another principal is told %+v", state.name, s)
			}
			if s := w.Absent("ten_other", nil, "ops"); s != (jobs.Standing{}) {
				t.Errorf("%s: another tenant is told %+v", state.name, s)
			}
			if state.name == "not enrolled" {
				if s := w.Absent(tenant, []string{machineOf(r.node(t))}, "ops"); s != (jobs.Standing{}) {
					t.Errorf("enrolled: %+v", s)
				}
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := &replayer{down: true}
		if bad := saidOf(watching(t, r, 0).Absent(tenant, nil, "ops"), "has not answered lately", "bivouac doctor"); bad != "" {
			t.Error(bad)
		}
	})
}
