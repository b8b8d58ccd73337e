package plan

import (
	"strings"
	"testing"
	"time"

	"bivouac/vaultpolicy/login"
	"bivouac/vaultpolicy/policies"
)

func wantedBy(method string) Wanted {
	c := policies.Credential{Tenant: "ten_01m8n7mng1x16gsh7mgchdm30b", Name: "weather"}
	return Wanted{
		Names: policies.NamesOf("bivouac"), Credentials: []policies.Opened{{Credential: c}}, Routes: []policies.Credential{c}, Period: 72 * time.Hour, TokensPerSecond: 500,
		Login: Login{Auth: login.Auth{Method: method, Mount: method, Role: "bivouac-broker"}, Audiences: []string{"vault.io"}, UserClaim: "sub", Issuer: "PEM", CommonName: "broker"},
	}
}

// Every method of login has its own items, and every item says what it is for.
func TestPlan(t *testing.T) {
	for method, path := range map[string]string{
		login.AppRole: "auth/approle/role/bivouac-broker", login.JWT: "auth/jwt/role/bivouac-broker", login.Cert: "auth/cert/certs/bivouac-broker",
		login.Token: "auth/token/roles/bivouac-broker",
	} {
		found := false
		seen := map[string]bool{}
		for _, i := range New(wantedBy(method)).Items {
			found = found || i.Path == path
			if i.For == "" || len(i.Want) == 0 || seen[i.Path] {
				t.Errorf("%s: %+v", method, i)
			}
			seen[i.Path] = true
		}
		if !found {
			t.Errorf("%s: nothing at %s", method, path)
		}
	}
}

// What these servers give back in another form is the same; what says otherwise is not.
func TestSame(t *testing.T) {
	for _, c := range []struct {
		have, want any
		same       bool
	}{
		{"x", "x", true}, {"x", "y", false}, {nil, "x", false}, {nil, "", true},
		{true, true, true}, {nil, false, true}, {nil, true, false},
		{float64(500), 500, true}, {nil, 0, false},
		{float64(259200), 72 * time.Hour, true}, {"72h0m0s", 72 * time.Hour, true}, {float64(1), time.Hour, false}, {nil, time.Duration(0), false},
		{[]any{"b", "a"}, []string{"a", "b"}, true}, {"a,b", []string{"b", "a"}, true}, {[]any{"a"}, []string{"a", "b"}, false}, {[]any{"a", "root"}, []string{"a"}, false},
		{map[string]any{"version": "2", "more": "x"}, map[string]any{"version": "2"}, true}, {map[string]any{"version": "1"}, map[string]any{"version": "2"}, false},
	} {
		if same(c.have, c.want) != c.same {
			t.Errorf("%v and %v: want %v", c.have, c.want, c.same)
		}
	}
}

func TestPrint(t *testing.T) {
	policy := Item{Kind: "policy", Name: "p", Path: "sys/policies/acl/p", Want: map[string]any{"policy": "a\nb\nc\n"}}
	mount := Item{Kind: "mount", Name: "m", Path: "sys/mounts/m", Fixed: true, For: "nothing works", Want: map[string]any{"type": "kv"}}
	d := Diff{
		{Item: mount, Missing: true},
		{Item: mount, Changes: []Change{{"type", "transit", "kv"}}},
		{Item: policy, Changes: policy.changes(map[string]any{"policy": "a\nx\nc\n"})},
	}
	want := `+ mount m (sys/mounts/m)
    type = "kv"
! mount m (sys/mounts/m)
    type = "transit" -> "kv"
~ policy p (sys/policies/acl/p)
      a
    + b
    - x
      c
`
	if got := d.String(); got != want {
		t.Errorf("%s", got)
	}
	if m := strings.Join(d.Missing(), "\n"); !strings.Contains(m, "mount m is missing: without it, nothing works") || !strings.Contains(m, "policy p differs") {
		t.Error(m)
	}
	if (Diff{}).String() != "nothing differs\n" {
		t.Error(Diff{}.String())
	}
}
