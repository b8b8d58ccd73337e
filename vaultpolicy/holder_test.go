package vaultpolicy

import (
	"strings"
	"testing"

	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/login"
)

// Whose login lacks a right is said, and the command that fits: setup where the login has
// the policies, and a login that has them where it has not.
func TestMendRights(t *testing.T) {
	const setup = "bivouac vault setup --apply --broker-config /etc/bivouac/broker.hcl"
	for name, c := range map[string]struct {
		auth     Auth
		policies []any
		says     string
		mend     []string
	}{
		"the policy lacks it": {Auth{Method: login.AppRole, Mount: "approle", Role: "bivouac-broker", SecretIDFile: "/b/secret-id"}, []any{"bivouac-broker", "bivouac-routes", "default"},
			"the broker's login (role bivouac-broker of auth/approle, secret id in /b/secret-id, accessor acc-1, policies bivouac-broker, bivouac-routes, default, until 2030-01-02T03:04:05Z)", []string{setup + "  (as an admin of the server: a policy that the login has"}},
		"the role gives none": {Auth{Method: login.AppRole, Mount: "approle", Role: "bivouac-broker", SecretIDFile: "/b/secret-id"}, []any{"bivouac-routes"},
			"policies bivouac-routes, until", []string{setup + "  (as an admin of the server: the role gives no policy bivouac-broker)", "start the broker anew"}},
		"another's token": {Auth{Method: login.Token, File: "/b/token"}, nil,
			"the broker's login (the token in /b/token, accessor acc-1, no policies, until", []string{setup + "  (as an admin of the server), then another token", "vault token create -role=bivouac-broker", "/b/token"}},
	} {
		f := File{Config: Config{Auth: &c.auth, Prefix: "bivouac", file: "/etc/bivouac/broker.hcl"}}
		own := client.Answer{Data: map[string]any{"accessor": "acc-1", "policies": c.policies, "expire_time": "2030-01-02T03:04:05Z", "id": "hvs.canary"}}
		if got := f.whose(own); !strings.Contains(got, c.says) || strings.Contains(got, "canary") {
			t.Errorf("%s: %q, want %q", name, got, c.says)
		}
		for i, want := range c.mend {
			if got := f.mendRights(own); !strings.Contains(got, want) || i == 0 && !strings.HasPrefix(got, want) {
				t.Errorf("%s: mend %q, want %q", name, got, want)
			}
		}
	}
	called := Config{file: "/etc/bivouac/broker.hcl"}.Called(" --broker-config b.hcl --tenant ten_x")
	if got, want := called.Setup(), "bivouac vault setup --apply --broker-config b.hcl --tenant ten_x"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
