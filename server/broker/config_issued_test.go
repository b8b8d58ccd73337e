package broker_test

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker"
)

const issuedConfig = `vault {}
destination "reports" {
  url = "https://reports.example"
  credential "reports-db" {
    from "database" {
      role = "reports-ro"
    }
  }
  credential "plain-key" {}
}
destination "archive" {
  url = "https://archive.example"
  credential "reports-db" {
    from "database" {
      mount = "database"
      role  = "reports-ro"
    }
  }
}
`

// Credentials that an engine issues stand beside those that are stored, and what says
// two things at once is refused with its line.
func TestIssuedInConfig(t *testing.T) {
	c, err := broker.ParseConfig([]byte(issuedConfig), "broker.hcl")
	if err != nil {
		t.Fatal(err)
	}
	from := c.Destinations[0].Credentials[0].From
	if from == nil || from.Mount != "database" || from.Role != "reports-ro" || c.Destinations[0].Credentials[1].From != nil || c.Destinations[0].Credentials[1].Header != "Authorization" {
		t.Errorf("%+v", c.Destinations)
	}
	const model = "model \"m\" {\n  base_url = \"https://m.example\"\n  model = \"m\"\n  credential = \"reports-db\"\n  data_boundaries = [\"personal\"]\n}\n"
	for name, tc := range map[string]struct{ old, new, line, want string }{
		"without a server":     {"vault {}", "", "broker.hcl:5", "needs a vault block"},
		"another role":         {"role  = \"reports-ro\"", "role  = \"other\"", "broker.hcl:13", "database role reports-ro at database/ elsewhere in this file"},
		"stored elsewhere":     {"credential \"plain-key\" {}", "credential \"k\" {}\n}\ndestination \"d\" {\n  url = \"https://d.example\"\n  credential \"reports-db\" {}", "broker.hcl:13", "a value that is stored"},
		"a header beside it":   {"credential \"reports-db\" {", "credential \"reports-db\" {\n    header = \"X-Key\"", "broker.hcl:4", "header and format are for a value that is stored"},
		"an unknown engine":    {"from \"database\"", "from \"postgres\"", "broker.hcl:5", "use one of"},
		"no role":              {"role = \"reports-ro\"", "", "broker.hcl:5", "role is missing"},
		"two engines":          {"from \"database\" {", "from \"database\" {\n      role = \"a\"\n    }\n    from \"database\" {", "broker.hcl:", "from"},
		"a field of no engine": {"role = \"reports-ro\"", "role = \"reports-ro\"\n      ttl_of_all = \"1h\"", "broker.hcl:7", "ttl_of_all"},
		"a model's key":        {"vault {}", "vault {}\n" + model, "broker.hcl:2", "a model route has none"},
		"an MCP list":          {"  credential \"plain-key\" {}", "  mcp {\n    credential = \"reports-db\"\n  }", "broker.hcl:2", "is issued under a grant"},
		"a registry's key":     {"  credential \"plain-key\" {}", "  data_boundaries = [\"personal\"]\n  egress {\n    protocol = \"go\"\n    credential = \"reports-db\"\n  }", "broker.hcl:2", "is issued under a grant"},
	} {
		text := strings.Replace(issuedConfig, tc.old, tc.new, 1)
		if text == issuedConfig {
			t.Fatalf("%s changes nothing", name)
		}
		_, err := broker.ParseConfig([]byte(text), "broker.hcl")
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), tc.line) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A certificate's name of which the vault block's tenants would share one is refused
// with its line; for one tenant, or with {tenant}, it is taken.
func TestCertificateNamesOfTenants(t *testing.T) {
	const a, b = `"ten_01arz3ndektsv4rrffq69g5fav"`, `"ten_01arz3ndektsv4rrffq69g5faw"`
	for text, refused := range map[string]bool{
		a + "\n{agent}": false, a + ", " + b + "\n{agent}": true, a + ", " + b + "\n{agent}.{tenant}": false,
	} {
		tenants, name, _ := strings.Cut(text, "\n")
		_, err := broker.ParseConfig([]byte("vault {\n  tenants = ["+tenants+"]\n}\ndestination \"d\" {\n  url = \"https://d.example\"\n  credential \"c\" {\n    from \"pki\" {\n      role = \"r\"\n      common_name = \""+name+".example\"\n    }\n  }\n}\n"), "broker.hcl")
		if (err != nil) != refused || err != nil && (!strings.Contains(err.Error(), "broker.hcl:7") || !strings.Contains(err.Error(), "{tenant}")) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
