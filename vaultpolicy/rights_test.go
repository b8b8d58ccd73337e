package vaultpolicy

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac/edge/protocol"
)

// rule of a policy.
type rule struct {
	Path         string   `hcl:"path,label"`
	Capabilities []string `hcl:"capabilities"`
	Remain       hcl.Body `hcl:",remain"`
}

func rulesOf(t *testing.T, policy string) []rule {
	t.Helper()
	file, diags := hclsyntax.ParseConfig([]byte(policy), "policy", hcl.InitialPos)
	var p struct {
		Rules []rule `hcl:"path,block"`
	}
	if !diags.HasErrors() {
		diags = append(diags, gohcl.DecodeBody(file.Body, nil, &p)...)
	}
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return p.Rules
}

// matches reports whether a path of a policy (+ is one part, * at the end the rest)
// is about a path.
func (r rule) matches(path string) bool {
	form := strings.ReplaceAll(regexp.QuoteMeta(r.Path), `\+`, `[^/]+`)
	if rest, ok := strings.CutSuffix(form, `\*`); ok {
		form = rest + ".*"
	}
	return regexp.MustCompile("^" + form + "$").MatchString(path)
}

// The rights that are asked for are those of the policies, each of them, and no others.
func TestRightsAreThoseOfThePolicy(t *testing.T) {
	cfg := Config{Tenants: []string{"ten_01arz3ndektsv4rrffq69g5fav"}, Prefix: "second"}.withDefaults(func(string) string { return "" })
	scope := Scope{Keys: []string{"openai"}}
	asked := cfg.rights(scope)
	rules := append(rulesOf(t, cfg.names().Broker()), rulesOf(t, cfg.names().Routes(cfg.keys(scope)))...)
	for _, r := range rules {
		i := slices.IndexFunc(asked, func(a right) bool { return r.matches(a.path) && subset(a.capabilities, r.Capabilities) })
		if i < 0 {
			t.Errorf("nobody asks for the right to %v on %s", r.Capabilities, r.Path)
		}
	}
	for _, a := range asked {
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.matches(a.path) && subset(a.capabilities, r.Capabilities) }) {
			t.Errorf("%s is asked for, and no policy gives it", a)
		}
		if a.without == "" {
			t.Errorf("%s: what does not work without it?", a)
		}
	}
	if len(asked) != len(rules) {
		t.Errorf("%d rights for %d rules", len(asked), len(rules))
	}
	for _, id := range []string{nobody, noID, noOne} {
		if kind, _, _ := strings.Cut(id, "_"); len(kind) != 3 {
			t.Error(id)
		}
	}
	if _, err := protocol.ParseID[protocol.TenantKind](noOne); err != nil {
		t.Error(err)
	}
}

func subset(a, of []string) bool {
	return !slices.ContainsFunc(a, func(x string) bool { return !slices.Contains(of, x) })
}
