package jobs_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/finding"
	"bivouac/jobs"
	"bivouac/jobs/workload"
)

const canary = "5ec2e700-0000-4000-8000-00000000cafe"

// refusing is a Nomad that knows a token and lets it ask for nothing but who it is, and a
// configuration of a server that asks there.
func refusing(t *testing.T, self map[string]any, policies ...string) jobs.Config {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		answer := func(v any) {
			w.Header().Set("X-Nomad-Index", "1")
			_ = json.NewEncoder(w).Encode(v)
		}
		switch q.URL.Path {
		case workload.JWKSPath:
			answer(map[string]any{"keys": []any{}})
		case "/v1/acl/token/self":
			answer(self)
		case "/v1/acl/policies":
			var all []map[string]any
			for _, p := range policies {
				all = append(all, map[string]any{"Name": p})
			}
			answer(all)
		default:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "Permission denied")
		}
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "nomad-token")
	if err := os.WriteFile(file, []byte(canary), 0o600); err != nil {
		t.Fatal(err)
	}
	return jobs.Config{Address: s.URL, TokenFile: file, Rules: rules, MaxAllocations: 5}
}

// Whose token lacks a right is said, with its policies and never itself; another token is
// advised where this one has not the policy, and setup where the policy is not what it
// must be, in the namespace that it is about.
func TestWhoseTokenLacksARight(t *testing.T) {
	const another = "nomad acl token create -name bivouac-server -policy bivouac-server -t '{{.SecretID}}' > "
	for name, c := range map[string]struct {
		self     map[string]any
		policies []string
		says     string
		mend     string // how it begins
	}{
		"another's": {map[string]any{"AccessorID": "acc-1", "Name": "deploy", "Type": "client", "Policies": []string{"bivouac-deploy"}}, []string{"bivouac-deploy"},
			`the token "deploy" (accessor acc-1, policies bivouac-deploy) in `, "(umask 077; " + another},
		"of nobody": {map[string]any{"AccessorID": "anonymous", "Name": "Anonymous Token", "Type": "client", "Policies": []string{"anonymous"}}, nil, "which is nobody's (anonymous, policies anonymous)", "(umask 077; " + another},
		"by a role": {map[string]any{"AccessorID": "acc-2", "Name": "oidc", "Type": "client"}, []string{"bivouac-server"},
			`policies bivouac-server)`, "bivouac nomad setup --apply --namespace prod --node-pool gpu  ("},
		"old policy": {map[string]any{"AccessorID": "acc-3", "Name": "bivouac-server", "Type": "client", "Policies": []string{"bivouac-server"}}, []string{"bivouac-server"},
			`the token "bivouac-server" (accessor acc-3, policies bivouac-server)`, "bivouac nomad setup --apply --namespace prod --node-pool gpu  ("},
		"no policy": {map[string]any{"AccessorID": "acc-4", "Name": "bivouac-server", "Type": "client", "Policies": []string{"bivouac-server"}}, nil,
			`policies bivouac-server)`, "bivouac nomad setup --apply --namespace prod --node-pool gpu  (makes the policy"},
		"no policies": {map[string]any{"AccessorID": "acc-5", "Name": "bare", "Type": "client"}, nil, "accessor acc-5, no policies)", "(umask 077; " + another},
	} {
		cfg := refusing(t, c.self, c.policies...)
		rule := rules[0]
		rule.Namespace, rule.Pool = "prod", "gpu"
		cfg.Rules = []workload.Rule{rule}
		all := findings(t, cfg)
		for check, right := range map[string]string{"nomad.jobs": `namespace "prod" { capabilities = ["list-jobs", "read-job"] }`, "nomad.nodes": `node { policy = "read" }`, "nomad.allocations": `"register-job"`} {
			f := all[check]
			if f.Level == finding.OK || !strings.Contains(f.What, c.says) || !strings.Contains(f.What, " lacks ") || !strings.Contains(f.What, right) {
				t.Errorf("%s, %s: %+v", name, check, f)
			}
			if !strings.HasPrefix(f.Mend, c.mend) || strings.Contains(f.What, c.mend) {
				t.Errorf("%s, %s: mend %q of %q", name, check, f.Mend, f.What)
			}
			if strings.Contains(fmt.Sprint(f), "cafe") {
				t.Errorf("%s, %s: the token is in it: %+v", name, check, f)
			}
		}
	}
}

// The command that sets a site up names what is not the usual.
func TestSetupCommand(t *testing.T) {
	for want, s := range map[string]jobs.Site{
		"bivouac nomad setup --apply":                                              {Namespace: "agents", Pools: []string{"agents"}},
		"bivouac nomad setup --apply --namespace prod":                             {Namespace: "prod"},
		"bivouac nomad setup --apply --namespace prod --node-pool a --node-pool b": {Namespace: "prod", Pools: []string{"a", "b"}},
	} {
		if got := s.Setup(); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}
