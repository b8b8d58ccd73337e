package workload_test

import (
	"crypto/rand"
	"crypto/rsa"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/protocol"
	"bivouac/jobs/jobstest"
	"bivouac/jobs/workload"
)

const node = "0c4b1a52-7e1a-3f65-9c1e-5a2b6d7e8f90"

var rule = workload.Rule{Name: "agents", Audience: "bivouac.example.org", Namespace: "agents", Job: "bivouac-runner", Task: "edge",
	Tenant: "ten_01jdv3k8x0q6v9w2m4t7y5z1ab", Principal: "ops"}

func judge(s *jobstest.Signer, rules ...workload.Rule) *workload.Judge {
	return workload.NewJudge(workload.NewKeys("https://nomad.example.org:4646", func() (*http.Client, error) {
		return &http.Client{Transport: s}, nil
	}), rules)
}

// TestJudge: each thing that is wrong with an identity is said, and the same identity
// without it is taken.
func TestJudge(t *testing.T) {
	s := jobstest.NewSigner(t)
	s.Rotate(t, "", "ed-old")
	j := judge(s, rule)
	now := time.Now()
	extra := func(id, pool any) map[string]any { return map[string]any{"node_id": id, "node_pool": pool} }
	for name, c := range map[string]struct {
		over map[string]any
		code protocol.Code
		says string
	}{
		"expired":             {map[string]any{"exp": now.Add(-time.Minute).Unix(), "iat": now.Add(-16 * time.Minute).Unix()}, protocol.CodeUnauthenticated, "it expired at"},
		"without an end":      {map[string]any{"exp": nil}, protocol.CodeUnauthenticated, "give the task's identity block a ttl"},
		"lives too long":      {map[string]any{"exp": now.Add(2 * time.Hour).Unix()}, protocol.CodeUnauthenticated, "at most 1h0m0s is taken"},
		"of tomorrow":         {map[string]any{"nbf": now.Add(5 * time.Minute).Unix()}, protocol.CodeUnauthenticated, "clocks"},
		"issued tomorrow":     {map[string]any{"iat": now.Add(5 * time.Minute).Unix()}, protocol.CodeUnauthenticated, "clocks"},
		"of a service":        {map[string]any{"nomad_task": nil, "nomad_service": "edge"}, protocol.CodeUnauthenticated, "of a service and not of a task"},
		"empty node":          {map[string]any{"extra_claims": extra("", "agents")}, protocol.CodeUnauthenticated, "node_id is empty"},
		"literal node":        {map[string]any{"extra_claims": extra("${node.idd}", "agents")}, protocol.CodeUnauthenticated, `"${node.idd}", which Nomad did not fill in`},
		"literal pool":        {map[string]any{"extra_claims": extra(node, "${node.pol}")}, protocol.CodeUnauthenticated, "did not fill in"},
		"no extra claims":     {map[string]any{"extra_claims": nil}, protocol.CodeUnauthenticated, "bivouac nomad setup --apply"},
		"node of no form":     {map[string]any{"extra_claims": extra("../"+node, "agents")}, protocol.CodeUnauthenticated, "no id of a node"},
		"number for a node":   {map[string]any{"extra_claims": extra(7, "agents")}, protocol.CodeUnauthenticated, "no extra claim node_id"},
		"another audience":    {map[string]any{"aud": "vault.io"}, protocol.CodePermissionDenied, `it is for "vault.io"`},
		"another namespace":   {map[string]any{"nomad_namespace": "default"}, protocol.CodePermissionDenied, `namespace "default"`},
		"another job":         {map[string]any{"nomad_job_id": "web"}, protocol.CodePermissionDenied, `job "web", and enrol "agents" of server.hcl takes "bivouac-runner"`},
		"another task":        {map[string]any{"nomad_task": "sidecar"}, protocol.CodePermissionDenied, `task "sidecar"`},
		"an issuer not named": {map[string]any{"iss": "https://nomad.example.org"}, protocol.CodePermissionDenied, "set issuer there"},
		"claims of no form":   {map[string]any{"exp": "soon"}, protocol.CodeInvalidArgument, "claims cannot be read"},
	} {
		for _, key := range []string{"one", "ed-old"} {
			_, _, err := j.Judge(t.Context(), s.Sign(t, key, jobstest.Claims(node), c.over))
			if protocol.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
			if r, id, err := j.Judge(t.Context(), s.Sign(t, key, jobstest.Claims(node), nil)+"\n"); err != nil || r.Name != "agents" || id.Machine() != "agents/bivouac-runner/edge/"+node {
				t.Errorf("its twin: %+v %+v %v", r, id, err)
			}
		}
	}
}

// Several audiences, an issuer and a pool are taken where they are asked for; the words
// about what fits none are of the rule that came closest.
func TestRules(t *testing.T) {
	s := jobstest.NewSigner(t)
	strict, other := rule, rule
	strict.Issuer, strict.Pool = "https://nomad.example.org", "agents"
	other.Name, other.Namespace = "others", "others"
	j := judge(s, other, strict)
	good := map[string]any{"iss": strict.Issuer, "aud": []string{"vault.io", "bivouac.example.org"}}
	if r, _, err := j.Judge(t.Context(), s.Sign(t, "one", jobstest.Claims(node), good)); err != nil || r.Name != "agents" {
		t.Errorf("%+v %v", r, err)
	}
	for says, over := range map[string]map[string]any{
		`its issuer is "https://evil.example"`:        {"iss": "https://evil.example"},
		`its issuer is ""`:                            {},
		`in pool "gpu"`:                               {"iss": strict.Issuer, "extra_claims": map[string]any{"node_id": node, "node_pool": "gpu"}},
		`enrol "others" of server.hcl takes "others"`: {"nomad_namespace": "otters", "nomad_job_id": "web"},
	} {
		if _, _, err := j.Judge(t.Context(), s.Sign(t, "one", jobstest.Claims(node), over)); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
	if _, _, err := judge(s).Judge(t.Context(), s.Sign(t, "one", jobstest.Claims(node), nil)); protocol.CodeOf(err) != protocol.CodePermissionDenied {
		t.Errorf("without a rule: %v", err)
	}
}

// What is no identity, or not Nomad's, is refused without a word of it.
func TestForged(t *testing.T) {
	s, evil := jobstest.NewSigner(t), jobstest.NewSigner(t)
	j := judge(s, rule)
	good := s.Sign(t, "one", jobstest.Claims(node), nil)
	parts := strings.Split(good, ".")
	foreign := evil.Sign(t, "one", jobstest.Claims("1"+node[1:]), nil)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	psSigner, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.PS256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ps, err := psSigner.Sign([]byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	psText, err := ps.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		token string
		code  protocol.Code
	}{
		"empty":                  {"", protocol.CodeInvalidArgument},
		"a join code":            {"join_x_y", protocol.CodeInvalidArgument},
		"too large":              {strings.Repeat("a", workload.MaxToken+1), protocol.CodeInvalidArgument},
		"without signature":      {parts[0] + "." + parts[1] + ".", protocol.CodeUnauthenticated},
		"alg none":               {"eyJhbGciOiJub25lIiwia2lkIjoib25lIn0." + parts[1] + ".", protocol.CodeInvalidArgument},
		"another algorithm":      {psText, protocol.CodeInvalidArgument},
		"claims changed":         {parts[0] + "." + strings.Split(foreign, ".")[1] + "." + parts[2], protocol.CodeUnauthenticated},
		"signed by a stranger":   {foreign, protocol.CodeUnauthenticated},
		"by a key of no Nomad's": {func() string { evil.Rotate(t, "one", "two"); return evil.Sign(t, "two", jobstest.Claims(node), nil) }(), protocol.CodeUnauthenticated},
	} {
		_, _, err := j.Judge(t.Context(), c.token)
		if protocol.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && len(c.token) > 40 && strings.Contains(err.Error(), c.token[:40]) {
			t.Errorf("%s: the token is in the error: %v", name, err)
		}
	}
	if _, _, err := j.Judge(t.Context(), good); err != nil {
		t.Errorf("the twin: %v", err)
	}
}

// Keys are asked for once, again for one that is not known, and seldom; a retired key
// is forgotten; while Nomad is down known keys count for an hour.
func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := jobstest.NewSigner(t)
		j := judge(s, rule)
		try := func(key string) error {
			_, _, err := j.Judge(t.Context(), s.Sign(t, key, jobstest.Claims(node), nil))
			return err
		}
		asked := func(want int64) {
			t.Helper()
			if got := s.Asked.Load(); got != want {
				t.Errorf("keys were asked for %d times, want %d", got, want)
			}
		}
		for range 3 {
			if err := try("one"); err != nil {
				t.Fatal(err)
			}
		}
		asked(1)
		s.Rotate(t, "", "two")
		if err := try("two"); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("a moment after the last question: %v", err)
		}
		asked(1)
		time.Sleep(6 * time.Second)
		if err := try("two"); err != nil {
			t.Errorf("the new key: %v", err)
		}
		asked(2)
		old := s.Sign(t, "one", jobstest.Claims(node), nil)
		s.Rotate(t, "one", "three")
		time.Sleep(11 * time.Minute)
		if _, _, err := j.Judge(t.Context(), old); protocol.CodeOf(err) != protocol.CodeUnauthenticated || !strings.Contains(err.Error(), "retired") {
			t.Errorf("a retired key: %v", err)
		}
		s.Down(true)
		time.Sleep(40 * time.Minute)
		if err := try("two"); err != nil {
			t.Errorf("a known key while Nomad is down: %v", err)
		}
		time.Sleep(21 * time.Minute)
		if err := try("two"); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "curl https://nomad.example.org:4646/.well-known/jwks.json") {
			t.Errorf("an hour later: %v", err)
		}
		s.Down(false)
		time.Sleep(6 * time.Second)
		if err := try("two"); err != nil {
			t.Errorf("when it is back: %v", err)
		}
	})
}
