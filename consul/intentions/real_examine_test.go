//go:build linux

package intentions_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"bivouac/consul/intentions"
	"bivouac/consul/plan"
	"bivouac/edge/finding"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

// fileOf a broker with one destination and one model route.
func fileOf(t *testing.T, at *consulserver.Server, token string) intentions.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "broker.hcl")
	text := "model \"main\" {\n}\ndestination \"weather\" {\n}\nconsul {\n  address = \"" + at.Address() + "\"\n  ca_file = \"" + at.CAFile() + "\"\n"
	if token != "" {
		text += "  token_file = \"" + token + "\"\n"
	}
	if err := os.WriteFile(name, []byte(text+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := intentions.ReadFile(name, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The doctor sees what the broker sees: nothing wrong where setup was applied, and each
// thing that is wrong by its name, with what mends it.
func TestExamine(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		overHTTP(t, at)
		good, _ := at.Token(t, plan.Rules([]string{"weather", "model-main"}), 0)
		look := func(token string) *finding.Report {
			r := finding.From("here")
			fileOf(t, at, token).Examine(t.Context(), r)
			return r
		}
		if r := look(good); r.Worst() != finding.OK {
			t.Errorf("with all that is needed: %+v", r.All)
		}
		half, _ := at.Token(t, plan.Rules([]string{"weather"}), 0)
		wrong := filepath.Join(t.TempDir(), "wrong")
		consulserver.WriteToken(t, wrong, "00000000-0000-4000-8000-000000000bad")
		mighty := filepath.Join(t.TempDir(), "mighty")
		consulserver.WriteToken(t, mighty, at.Management())
		for name, tc := range map[string]struct{ token, check, want string }{
			"a right is missing": {half, "consul.rights", "in " + half + " lacks a right"},
			"no token of it":     {wrong, "consul.token", "Consul knows no token of that in " + wrong},
			"a token of all":     {mighty, "consul.token", "may do everything"},
			"no file":            {filepath.Join(t.TempDir(), "none"), "consul.token", "token_file"},
			"nobody":             {"", "consul.token", "asked as nobody"},
		} {
			found := false
			for _, f := range look(tc.token).All {
				found = found || f.Check == tc.check && f.Level != finding.OK && strings.Contains(f.What, tc.want) && f.Mend != ""
			}
			if !found {
				t.Errorf("%s: not found in %+v", name, look(tc.token).All)
			}
		}
		// Consul's own default is no matter of ours; an allow under everything is.
		write(t, at, &api.ServiceIntentionsConfigEntry{Kind: api.ServiceIntentions, Name: "weather", Sources: []*api.SourceIntention{{Name: "web", Peer: "east", Action: api.IntentionActionAllow}}})
		found := false
		for _, f := range look(good).All {
			found = found || f.Check == "consul.intentions" && strings.Contains(f.What, `peer "east"`)
		}
		if !found {
			t.Errorf("an intention that cannot be enforced is not found: %+v", look(good).All)
		}
	})
}

// A Consul that is away is found as that, and nothing else is said.
func TestExamineAway(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		token, _ := at.Token(t, plan.Rules([]string{"weather", "model-main"}), 0)
		f := fileOf(t, at, token)
		at.Stop(t)
		r := finding.From("here")
		f.Examine(t.Context(), r)
		if len(r.All) != 1 || r.All[0].Check != "consul.server" || r.All[0].Level != finding.Problem || !strings.Contains(r.All[0].What, "does not answer") {
			t.Errorf("%+v", r.All)
		}
	})
}
