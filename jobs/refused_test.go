package jobs_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/jobs"
	"bivouac/jobs/jobstest"
	"bivouac/jobs/workload"
)

const refusedNode = "0c4b1a52-7e1a-3f65-9c1e-5a2b6d7e8f90"

// refusals of a server with a rule of each of two tenants.
type refusals struct {
	*jobs.Refusals
	judge  *workload.Judge
	signer *jobstest.Signer
	now    time.Time
}

func newRefusals(t *testing.T) *refusals {
	s := jobstest.NewSigner(t)
	mine := workload.Rule{Name: "agents", Audience: "bivouac.example.org", Namespace: "agents", Job: "bivouac-runner", Task: "edge", Tenant: "ten_01jdv3k8x0q6v9w2m4t7y5z1ab", Principal: "ops"}
	other := mine
	other.Name, other.Namespace, other.Tenant = "others", "others", "ten_01jdv3k8x0q6v9w2m4t7y5z1ac"
	keys := workload.NewKeys("https://nomad.example.org:4646", func() (*http.Client, error) { return &http.Client{Transport: s}, nil })
	return &refusals{jobs.NewRefusals(), workload.NewJudge(keys, []workload.Rule{mine, other}), s, time.Now()}
}

// sends an identity, and enrols the machine with outcome where it is taken.
func (r *refusals) sends(t *testing.T, token string, outcome error) {
	t.Helper()
	r.now = r.now.Add(time.Second)
	rule, id, err := r.judge.Judge(t.Context(), token)
	if err != nil {
		r.Judged(err, r.now)
		return
	}
	r.Enrolled(rule, id, outcome, r.now)
}

func (r *refusals) found(enrolled time.Time) []finding.Finding {
	report := finding.From("server")
	r.Examine(report, "https://nomad.example.org:4646", func(string) time.Time { return enrolled }, r.now)
	return report.All
}

// Each class of refusal is said, of whom and how often, with what mends it, and is over
// when the machine has enrolled.
func TestRefusalsAreSaid(t *testing.T) {
	const machine = `task "edge" of job "bivouac-runner" in namespace "agents" on node 0c4b1a52 (enrol "agents"): `
	for name, c := range map[string]struct {
		over       map[string]any
		outcome    error
		says, mend string
	}{
		"times":        {map[string]any{"exp": time.Now().Add(2 * time.Hour).Unix()}, nil, machine + "the workload identity is refused: it lives for", "nomad job inspect -namespace agents bivouac-runner"},
		"claims":       {map[string]any{"extra_claims": map[string]any{"node_id": refusedNode}}, nil, machine + "the workload identity is refused: it has no extra claim node_pool", "bivouac nomad setup --apply --namespace agents"},
		"rule":         {map[string]any{"aud": "vault.io"}, nil, machine + `the workload identity is refused: it is for "vault.io"`, "correct enrol in server.hcl"},
		"no such rule": {map[string]any{"nomad_job_id": "web; rm\x1b"}, nil, `job "web; rm\x1b" in namespace "agents" on node 0c4b1a52 (no enrol block of server.hcl is about it)`, "'web; rm"},
		"enrol":        {nil, protocol.Errorf(protocol.CodeAlreadyExists, "its node is already runner run_1"), machine + "its node is already runner run_1", "bivouac edge list"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRefusals(t)
			token := r.signer.Sign(t, "one", jobstest.Claims(refusedNode), c.over)
			for range 3 {
				r.sends(t, token, c.outcome)
			}
			all := r.found(time.Time{})
			if len(all) != 1 || all[0].Level != finding.Warning || !strings.Contains(all[0].What, c.says) || !strings.Contains(all[0].What, "3 time(s)") || !strings.Contains(all[0].Mend, c.mend) {
				t.Fatalf("%+v", all)
			}
			for _, part := range strings.Split(token, ".") {
				if strings.Contains(fmt.Sprint(all), part) {
					t.Error("a part of the token is shown")
				}
			}
			if all := r.found(r.now.Add(time.Second)); len(all) != 1 || all[0].Level != finding.OK {
				t.Errorf("it enrolled at another replica: %+v", all)
			}
			if name != "no such rule" { // that task never enrols
				r.sends(t, r.signer.Sign(t, "one", jobstest.Claims("1"+refusedNode[1:]), nil), nil)
				if all := r.found(time.Time{}); len(all) != 1 || all[0].Level != finding.Warning {
					t.Errorf("another node enrolled: %+v", all)
				}
				r.sends(t, r.signer.Sign(t, "one", jobstest.Claims(refusedNode), nil), nil)
				if all := r.found(time.Time{}); len(all) != 1 || all[0].Level != finding.OK {
					t.Errorf("it enrolled: %+v", all)
				}
			}
			r.sends(t, token, c.outcome)
			r.now = r.now.Add(25 * time.Hour)
			if all := r.found(time.Time{}); len(all) != 1 || all[0].Level != finding.OK {
				t.Errorf("a day later: %+v", all)
			}
		})
	}
}

// What nobody of that Nomad signed is counted, and no claim of it is shown.
func TestStrangersAreCounted(t *testing.T) {
	r, evil := newRefusals(t), jobstest.NewSigner(t)
	for i := range 500 {
		r.sends(t, evil.Sign(t, "one", jobstest.Claims(refusedNode), map[string]any{"nomad_job_id": fmt.Sprint("evil-", i)}), nil)
		r.sends(t, "evil", nil)
	}
	r.Judged(protocol.Errorf(protocol.CodeUnavailable, "evil"), r.now)
	r.Judged(errors.New("evil"), r.now)
	all := r.found(time.Time{})
	if len(all) != 3 || strings.Contains(fmt.Sprint(all), "evil") || !strings.Contains(all[0].What, "500 time(s)") || !strings.Contains(all[1].What, "500 time(s)") || !strings.Contains(all[2].What, "1 time(s)") {
		t.Errorf("%+v", all)
	}
}

// Whoever may run jobs in Nomad fills a bounded place, and pushes out nobody of a rule.
func TestRefusalsAreBounded(t *testing.T) {
	r := newRefusals(t)
	for _, ns := range []string{"agents", "others"} {
		r.sends(t, r.signer.Sign(t, "one", jobstest.Claims(refusedNode), map[string]any{"nomad_namespace": ns, "aud": "vault.io"}), nil)
	}
	for i := range 200 {
		r.sends(t, r.signer.Sign(t, "one", jobstest.Claims(refusedNode), map[string]any{"nomad_job_id": fmt.Sprint(strings.Repeat("x", 4000), i)}), nil)
		r.sends(t, r.signer.Sign(t, "one", jobstest.Claims(refusedNode), map[string]any{"nomad_job_id": fmt.Sprint("web-", i)}), nil)
	}
	all, of := r.found(time.Time{}), map[string]int{}
	size := 0
	for _, f := range all {
		size += len(f.What) + len(f.Mend)
		for _, rule := range []string{`enrol "agents")`, `enrol "others")`, "no enrol block"} {
			if strings.Contains(f.What, rule) {
				of[rule]++
			}
		}
	}
	if of[`enrol "agents")`] != 1 || of[`enrol "others")`] != 1 || of["no enrol block"] != 16 || len(all) != 18 || size > 64<<10 {
		t.Errorf("%d findings of %d bytes: %v", len(all), size, of)
	}
}
