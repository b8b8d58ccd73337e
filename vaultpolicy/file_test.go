package vaultpolicy

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

const brokerHCL = `listen = "127.0.0.1:7402"
model "main" {
  base_url   = "https://api.example/v1"
  credential = "openai"
  price {
    input_usd_per_mtok = 1
  }
}
model "shared" {
  credential        = "shared-key"
  credential_tenant = "ten_01arz3ndektsv4rrffq69g5fav"
}
model "free" {}
destination "weather" {
  url = "https://weather.example"
  credential "weather-token" {
    header = "X-Key"
  }
}
destination "tickets" {
  url = "https://tickets.example"
  credential "tickets-token" {}
  credential "weather-token" {}
  mcp {
    credential = "tickets-token"
    timeout    = "5s"
  }
}
caps {
  spend_usd_per_hour = 1
}
vault {
  address = "https://vault.example:8200"
  ca_file = "/nowhere/ca.pem"
  tenants = ["ten_01arz3ndektsv4rrffq69g5fav"]
  auth "approle" {
    role_id_file   = "role-id"
    secret_id_file = "secret-id"
  }
  audit {
    file = "/nowhere/audit/audit.log"
  }
}
`

// broker.hcl says which credentials are opened, and to whom; files of the broker's
// machine need not be here, and are asked for on it.
func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "broker.hcl")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(brokerHCL)
	none := func(string) string { return "" }
	f, err := ReadFile(path, none)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.Scope.Credentials, []string{"weather-token", "tickets-token"}) || !slices.Equal(f.Scope.Keys, []string{"openai", "tickets-token"}) ||
		len(f.Scope.TenantKeys) != 1 || f.Scope.TenantKeys[0].Name != "shared-key" || f.Auth.Role != "bivouac-broker" {
		t.Errorf("%+v", f)
	}
	// The broker itself reads the secret of an OAuth client, which no grant gives.
	write(brokerHCL + "\noauth2 \"tickets-token\" {\n  token_url = \"https://id.example/token\"\n  client_id = \"x\"\n  client_secret = \"tickets-client\"\n}\n")
	if g, err := ReadFile(path, none); err != nil || !slices.Equal(g.Scope.Keys, []string{"openai", "tickets-client", "tickets-token"}) {
		t.Errorf("%+v %v", g.Scope, err)
	}
	write(brokerHCL)
	p, err := f.Plan(f.Scope)
	if err != nil {
		t.Fatal(err)
	}
	var titles []string
	for _, i := range p.Items {
		titles = append(titles, i.Title())
	}
	for _, want := range []string{"mount bivouac-grants", "policy bivouac-use-ten_01arz3ndektsv4rrffq69g5fav-weather-token", "token role bivouac-grant", "login role bivouac-broker"} {
		if !slices.Contains(titles, want) {
			t.Errorf("the plan has no %s: %v", want, titles)
		}
	}
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"no block":       {"listen = \"127.0.0.1:1\"\n", "no vault block"},
		"no address":     {strings.Replace(brokerHCL, "  address =", "  #", 1), "VAULT_ADDR"},
		"a bad name":     {strings.Replace(brokerHCL, `"openai"`, `"Open AI"`, 1), "Open AI"},
		"a bad tenant":   {strings.Replace(brokerHCL, `credential_tenant = "ten`, `credential_tenant = "prn`, 1), "prn_"},
		"a typing error": {strings.Replace(brokerHCL, "tenants =", "tenant =", 1), "tenant"},
		"no HCL":         {"vault {", path + ":1"},
		"open to others": {"", "chmod"},
	} {
		write(c.text)
		if c.text == "" {
			write(brokerHCL)
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ReadFile(path, none); err == nil || !strings.Contains(err.Error(), c.want) || protocol.CodeOf(err) == protocol.CodeInternal {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	if _, err := ReadFile(path, none); !errors.Is(err, ErrNoVault) {
		t.Error(err)
	}
}

// What an engine issues has a policy of its own for each tenant that may use it, and
// none for the others.
func TestReadFileIssued(t *testing.T) {
	const two = "ten_01m8n7mng1x16gsh7mgchdm30b"
	text := strings.Replace(brokerHCL, "vault {", `destination "reports" {
  url = "https://reports.example"
  credential "reports-db" {
    from "database" {
      mount   = "team/pg"
      role    = "reports-ro"
      tenants = ["`+two+`"]
    }
  }
}
vault {`, 1)
	f, err := parseFile([]byte(text), "broker.hcl", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	f.Tenants = append(f.Tenants, two)
	p, err := f.Plan(f.Scope)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, i := range p.Items {
		if i.Kind == "policy" && strings.HasSuffix(i.Name, "-reports-db") {
			found[i.Name] = i.Want["policy"].(string)
		}
	}
	if rule := found["bivouac-use-"+two+"-reports-db"]; len(found) != 1 || !strings.Contains(rule, `path "team/pg/creds/reports-ro" {`) || !strings.Contains(rule, `["team/pg/creds/reports-ro/*"]`) || strings.Contains(rule, "credentials/data") {
		t.Errorf("%v", found)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"Bivouac's own": {"team/pg", "bivouac-transit", "broker.hcl"},
		"a pattern":     {"reports-ro", "*", `role "*"`},
		"no engine":     {`from "database"`, `from "sql"`, "not known"},
	} {
		if _, err := parseFile([]byte(strings.Replace(text, c.old, c.new, 1)), "broker.hcl", func(string) string { return "" }); protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
