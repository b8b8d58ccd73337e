package settings

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const canary = "5ec2e700-0000-4000-8000-00000000cafe"

// Whose token lacks a right is said, never the token; setup is advised where it has the
// role, another token where it has not, or is none at Consul.
func TestWhoseTokenLacksARight(t *testing.T) {
	type names []map[string]string
	const another = "(umask 077; consul acl token create -role-name bivouac-broker -format json | jq -r .SecretID > "
	for name, c := range map[string]struct {
		of         Of
		self       map[string]any // nil: Consul knows no such token
		says, mend string
	}{
		"the policy lacks it": {Broker, map[string]any{"AccessorID": "acc-1", "Description": "broker", "Roles": names{{"Name": "bivouac-broker"}}, "ExpirationTime": "2030-01-02T03:04:05Z"},
			`the token "broker" (accessor acc-1, role bivouac-broker, until 2030-01-02T03:04:05Z) in `, "bivouac consul setup --apply --broker-config "},
		"another's": {Broker, map[string]any{"AccessorID": "acc-2", "Description": "web", "Policies": names{{"Name": "web"}}, "ServiceIdentities": []map[string]string{{"ServiceName": "web"}}},
			`the token "web" (accessor acc-2, policy web, policy service identity web) in `, another},
		"of nobody":    {Broker, map[string]any{"AccessorID": "00000000-0000-0000-0000-000000000002", "Policies": names{}}, "nobody's token (anonymous, no roles and no policies) in ", another},
		"gone":         {Broker, nil, "Consul knows no token of that in ", another},
		"the server's": {Server, map[string]any{"AccessorID": "acc-3", "Description": "srv", "Roles": names{{"Name": "bivouac-server"}}}, `role bivouac-server) in `, "bivouac consul setup --apply  (as an admin of Consul, where the broker's broker.hcl is"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			switch {
			case c.self == nil:
				http.Error(w, "ACL not found", http.StatusForbidden)
			case q.URL.Path == "/v1/acl/token/self":
				_ = json.NewEncoder(w).Encode(c.self)
			default:
				http.Error(w, "Permission denied: it lacks permission 'intention:read'", http.StatusForbidden)
			}
		}))
		defer s.Close()
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(canary), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := decoded(t, "address = \""+s.URL+"\"\ntoken_file = \"token\"\nservice {}\n", dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg.of, cfg.Service = c.of, &Service{Name: DefaultName(c.of)}
		asked, err := cfg.Client()
		if err != nil {
			t.Fatal(err)
		}
		defer asked.Close()
		_, err = asked.Match(t.Context(), "weather", 0, 0)
		what, mend := cfg.Lacks(t.Context(), asked, err)
		if !strings.Contains(what, c.says) || !strings.Contains(what, filepath.Join(dir, "token")) || !strings.HasPrefix(mend, c.mend) {
			t.Errorf("%s: %q\nmend %q", name, what, mend)
		}
		if strings.Contains(what+mend, "cafe") {
			t.Errorf("%s: the token is in it: %s %s", name, what, mend)
		}
	}
}

// A command that is named repeats the flags with which it was called, and otherwise names
// the file whose block it is.
func TestSetupCommand(t *testing.T) {
	cfg, err := decoded(t, "address = \"127.0.0.1:8500\"\ntoken_file = \"consul.token\"\n", "there", nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.file = "/etc/my broker/broker.hcl"
	if got, want := cfg.Setup(), "bivouac consul setup --apply --broker-config '/etc/my broker/broker.hcl'"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	called := cfg.Called(" --broker-config b.hcl --name east", "east")
	if got, want := called.Setup(), "bivouac consul setup --apply --broker-config b.hcl --name east"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := called.Another(), "(umask 077; consul acl token create -role-name east -format json | jq -r .SecretID > there/consul.token)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
