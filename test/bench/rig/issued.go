package rig

import (
	"context"
	"fmt"

	"bivouac/server/broker/issued"
	"bivouac/vaultpolicy"
)

// What engines issue at a site: users of a database, which are leases, and certificates
// of clients.
var (
	usersFrom        = (&issued.From{Engine: issued.Database, Mount: "bench-db", Role: "reports"}).WithDefaults()
	certificatesFrom = (&issued.From{Engine: issued.PKI, Mount: "bench-pki", Role: "agents", CommonName: "{agent}.agents.example"}).WithDefaults()
)

// Names of the credentials.
const (
	userKey        = "reports"
	certificateKey = "partner"
)

const issuedFile = `
destination "issued" {
  url = "https://issued.example"
  credential "reports" {
    from "database" {
      mount = "bench-db"
      role  = "reports"
    }
  }
  credential "partner" {
    from "pki" {
      mount       = "bench-pki"
      role        = "agents"
      common_name = "{agent}.agents.example"
    }
  }
}
`

// engines are mounted by the admin.
func (x *Site) engines(ctx context.Context, database string) error {
	for _, w := range []struct {
		path   string
		fields map[string]any
	}{
		{"sys/mounts/bench-db", map[string]any{"type": "database"}},
		{"bench-db/config/pg", map[string]any{"plugin_name": "postgresql-database-plugin", "allowed_roles": "*", "connection_url": database, "max_open_connections": 8}},
		{"bench-db/roles/reports", map[string]any{"db_name": "pg", "default_ttl": "1h", "max_ttl": "24h",
			"creation_statements": `create role "{{name}}" with login password '{{password}}' valid until '{{expiration}}'`}},
		{"sys/mounts/bench-pki", map[string]any{"type": "pki"}},
		{"bench-pki/root/generate/internal", map[string]any{"common_name": "agents", "key_type": "ec", "ttl": "24h"}},
		{"bench-pki/roles/agents", map[string]any{"allowed_domains": "agents.example", "allow_subdomains": true, "server_flag": false, "client_flag": true,
			"key_type": "ec", "no_store": true, "max_ttl": "1h"}},
	} {
		if _, err := x.client.Write(ctx, x.root, w.path, w.fields); err != nil {
			return fmt.Errorf("%s: %w", w.path, err)
		}
	}
	x.grants = append(x.grants, userKey, certificateKey)
	return nil
}

// Issue one credential for an action of a grant, and hold it until it is returned: a
// user of the database, or every second time a certificate.
func (x *Site) Issue(ctx context.Context, v *vaultpolicy.Vault, g Grant, n int) (issued.Credential, error) {
	use, from := g.Use(), usersFrom
	use.Credential, use.TenantName = userKey, "local"
	if n%2 == 1 {
		use.Credential, from = certificateKey, certificatesFrom
	}
	return v.Issue(ctx, use, from)
}
