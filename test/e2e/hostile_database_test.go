//go:build linux

package e2e

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/server/store/storetest/pgcluster"
	"bivouac/test/engines/vaulttest"
)

// Mounts of the engines that issue, and what they issue by.
const (
	mountDatabase = "issued-db"
	mountPKI      = "issued-pki"
	mountTransit  = "issued-sign"

	roleReports = "reports"
	keyPartner  = "partner"
)

// reports is a database that an engine makes users of: whoever knows a user's password
// is let in, and nobody else.
type reports struct {
	cluster *pgcluster.Cluster
	admin   *sql.DB
}

// newReports starts a database that asks users for their password, and the admin for none.
func newReports(t *testing.T) *reports {
	t.Helper()
	c, err := pgcluster.New(t.Context())
	if errors.Is(err, pgcluster.ErrAbsent) {
		t.Skip("NOT TESTED: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	})
	r := &reports{cluster: c}
	hba := filepath.Join(c.Host(), "data", "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("local all bivouac trust\nlocal all all scram-sha-256\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r.admin, err = sql.Open("pgx", c.DSN()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.admin.Close() })
	var loaded bool
	if err := r.admin.QueryRowContext(t.Context(), "select pg_reload_conf()").Scan(&loaded); err != nil || !loaded {
		t.Fatal(err)
	}
	await(t, "the database to ask for passwords", func() error {
		if err := r.letsIn(t.Context(), "nobody", "wrong-password"); err == nil || !strings.Contains(err.Error(), "password") {
			return errors.Join(errors.New("a wrong password is not refused"), err)
		}
		return nil
	})
	return r
}

// letsIn reports whether a user's password opens the database.
func (r *reports) letsIn(ctx context.Context, user, password string) error {
	db, err := sql.Open("pgx", strings.Replace(r.cluster.DSN(), "user=bivouac", "user='"+user+"' password='"+password+"'", 1))
	if err != nil {
		return err
	}
	defer db.Close()
	return db.PingContext(ctx)
}

// users that an engine made and has not taken away.
func (r *reports) users(t *testing.T) (n int) {
	t.Helper()
	if err := r.admin.QueryRowContext(t.Context(), "select count(*) from pg_roles where rolname like 'v-%'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// engine mounts the engine over the database, with its one role.
func (r *reports) engine(t *testing.T, s *vaulttest.Server) {
	t.Helper()
	adminMounts(t, s, mountDatabase, "database")
	adminWrites(t, s, mountDatabase+"/config/pg", map[string]any{
		"plugin_name": "postgresql-database-plugin", "allowed_roles": "*", "connection_url": r.cluster.DSN(), "verify_connection": true,
	})
	adminWrites(t, s, mountDatabase+"/roles/"+roleReports, map[string]any{"db_name": "pg", "default_ttl": "1h", "max_ttl": "24h",
		"creation_statements": `create role "{{name}}" with login password '{{password}}' valid until '{{expiration}}'`})
}

// certificates mounts an engine that signs clients' certificates, and returns its
// authority.
func certificates(t *testing.T, s *vaulttest.Server) (authority string) {
	t.Helper()
	adminMounts(t, s, mountPKI, "pki")
	made := adminWrites(t, s, mountPKI+"/root/generate/internal", map[string]any{"common_name": "agents", "key_type": "ec", "ttl": "24h"})
	adminWrites(t, s, mountPKI+"/roles/agents", map[string]any{"allowed_domains": "agents.example", "allow_subdomains": true,
		"server_flag": false, "client_flag": true, "key_type": "ec", "no_store": true, "max_ttl": "1h"})
	return made["certificate"].(string)
}

// signatures mounts an engine with a key that signs requests.
func signatures(t *testing.T, s *vaulttest.Server) {
	t.Helper()
	adminMounts(t, s, mountTransit, "transit")
	adminWrites(t, s, mountTransit+"/keys/"+keyPartner, map[string]any{"type": "ed25519"})
}

func adminMounts(t *testing.T, s *vaulttest.Server, mount, kind string) {
	t.Helper()
	adminWrites(t, s, "sys/mounts/"+mount, map[string]any{"type": kind})
}

func adminWrites(t *testing.T, s *vaulttest.Server, path string, fields map[string]any) map[string]any {
	t.Helper()
	a, err := s.Root(t).Logical().WriteWithContext(t.Context(), path, fields)
	if err != nil {
		t.Fatal(err)
	}
	if a == nil {
		return nil
	}
	return a.Data
}
