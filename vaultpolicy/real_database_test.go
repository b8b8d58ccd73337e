//go:build linux

package vaultpolicy

import (
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/issued"
	"bivouac/server/store/storetest/pgcluster"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// postgres asks users of the engine for their password, and the admin for none.
func postgres(t *testing.T) *pgcluster.Cluster {
	t.Helper()
	c, err := pgcluster.New(t.Context())
	if errors.Is(err, pgcluster.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	})
	hba := filepath.Join(c.Host(), "data", "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("local all bivouac trust\nlocal all all scram-sha-256\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var loaded bool
	if err := admin(t, c).QueryRowContext(t.Context(), "select pg_reload_conf()").Scan(&loaded); err != nil || !loaded {
		t.Fatal(err)
	}
	waits(t, "passwords are asked for", func() error {
		if err := logsIn(t, c, "bivouac_nobody", "wrong-password"); err == nil || !strings.Contains(err.Error(), "password") {
			return fmt.Errorf("a wrong password: %v", err)
		}
		return nil
	})
	return c
}

func admin(t *testing.T, c *pgcluster.Cluster) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", c.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// logsIn as a user of the engine, and reads what only such a one may.
func logsIn(t *testing.T, c *pgcluster.Cluster, user, password string) error {
	t.Helper()
	db, err := sql.Open("pgx", strings.Replace(c.DSN(), "user=bivouac", "user='"+user+"' password='"+password+"'", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var is string
	if err := db.QueryRowContext(t.Context(), "select current_user").Scan(&is); err != nil {
		return err
	}
	if is != user {
		return fmt.Errorf("it is %s, not %s", is, user)
	}
	return nil
}

// users of the engine that are there.
func users(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "select count(*) from pg_roles where rolname like 'v-%'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const madeUsers = `create role "{{name}}" with login password '{{password}}' valid until '{{expiration}}'`

// database is an engine over a cluster, with one role.
func (x *site) database(t *testing.T, c *pgcluster.Cluster) *issued.From {
	t.Helper()
	mount := x.mount(t, issued.Database)
	x.write(t, mount+"/config/pg", map[string]any{
		"plugin_name": "postgresql-database-plugin", "allowed_roles": "*", "connection_url": c.DSN(), "verify_connection": true,
	})
	x.write(t, mount+"/roles/reports-ro", map[string]any{"db_name": "pg", "creation_statements": madeUsers, "default_ttl": "1h", "max_ttl": "24h"})
	return (&issued.From{Engine: issued.Database, Mount: mount, Role: "reports-ro"}).WithDefaults()
}

// A user of a real database is made for one action, works, is gone when the action is
// over, and when its grant ends; and never lives longer than the action's token.
func TestDatabaseIssues(t *testing.T) {
	pg := postgres(t)
	db := admin(t, pg)
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		i := x.issuing(t, x.database(t, pg))
		gone := func() error {
			if users(t, db) > 0 {
				return errStill
			}
			return nil
		}
		c := i.issued(t)
		if err := logsIn(t, pg, c.User, c.Password.Reveal()); err != nil {
			t.Fatal(err)
		}
		if c.Value.Reveal() != base64.StdEncoding.EncodeToString([]byte(c.User+":"+c.Password.Reveal())) {
			t.Error("it does not travel as Basic does")
		}
		if err := logsIn(t, pg, c.User, "wrong-password"); err == nil {
			t.Error("the database takes any password: the test shows nothing")
		}
		lease := x.leases(t, i.from.Path())
		if len(lease) != 1 || lease[0] > time.Minute {
			t.Errorf("leases of %v: an hour is the role's", lease)
		}
		other := i.issued(t)
		if other.User == c.User {
			t.Error("two actions share a user")
		}
		c.Return(t.Context())
		waits(t, "the user of an action that is over", func() error {
			if err := logsIn(t, pg, c.User, c.Password.Reveal()); err == nil {
				return errStill
			}
			return nil
		})
		if err := logsIn(t, pg, other.User, other.Password.Reveal()); err != nil {
			t.Errorf("another action's user went too: %v", err)
		}
		c.Return(t.Context()) // twice is as good
		other.Return(t.Context())
		i.allRefusals(t, i.from.Path())
		waits(t, "users", gone)

		// Without the right to end a lease, the action works and its user ends with the token.
		i.withoutRight(t, "sys/leases/revoke", func() {
			c := i.issued(t)
			c.Return(t.Context())
			if err := logsIn(t, pg, c.User, c.Password.Reveal()); err != nil {
				t.Error(err)
			}
		})
		// Revoked in the middle: the user is gone, whoever holds its password.
		c = i.issued(t)
		i.revokedRefuses(t)
		waits(t, "users of a grant that ended", gone)
		if err := logsIn(t, pg, c.User, c.Password.Reveal()); err == nil {
			t.Error("its password works on")
		}
		c.Return(t.Context())
		if n := x.leases(t, i.from.Path()); len(n) != 0 {
			t.Errorf("%d leases are left", len(n))
		}
	})
}

// leases below a path, by what they have left.
func (x *site) leases(t *testing.T, path string) (left []time.Duration) {
	t.Helper()
	l, err := x.root.Logical().ListWithContext(t.Context(), "sys/leases/lookup/"+path)
	if err != nil || l == nil {
		return nil
	}
	for _, k := range l.Data["keys"].([]any) {
		a := x.write(t, "sys/leases/lookup", map[string]any{"lease_id": path + "/" + k.(string)})
		n, _ := a["ttl"].(interface{ Int64() (int64, error) }).Int64()
		left = append(left, time.Duration(n)*time.Second)
	}
	return left
}

// What an admin's engine may lack: each says what, and who mends it.
func TestDatabaseCannotIssue(t *testing.T) {
	pg := postgres(t)
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Start(t, p))
		i := x.issuing(t, x.database(t, pg))
		i.issued(t).Return(t.Context())
		role := x.roleAt(t, i.from.RolePath())
		if _, err := x.root.Logical().DeleteWithContext(t.Context(), i.from.RolePath()); err != nil {
			t.Fatal(err)
		}
		i.refuses(t, "a role that is missing", protocol.CodeFailedPrecondition, issuedName, "reports-ro", "vault read "+i.from.RolePath())
		role["creation_statements"] = []string{"create role nonsense syntax here"}
		x.write(t, i.from.RolePath(), role)
		i.refuses(t, "statements that fail", protocol.CodeUnavailable, issuedName, "failed inside")
		role["creation_statements"] = []string{madeUsers}
		x.write(t, i.from.RolePath(), role)
		i.issued(t).Return(t.Context())
		x.write(t, i.from.Mount+"/config/pg", map[string]any{
			"plugin_name": "postgresql-database-plugin", "allowed_roles": "*", "connection_url": "host=/nowhere user=bivouac dbname=postgres", "verify_connection": false,
		})
		i.refuses(t, "a database that is away", protocol.CodeUnavailable, issuedName, "may be away")
		if err := x.root.Sys().UnmountWithContext(t.Context(), i.from.Mount); err != nil {
			t.Fatal(err)
		}
		i.refuses(t, "no engine", protocol.CodeFailedPrecondition, "vault secrets enable -path="+i.from.Mount+" database")

		x.Seal(t)
		_, err := i.issue(t)
		codeIs(t, "sealed", err, protocol.CodeUnavailable)
		x.Unseal(t)
		waits(t, "what is stored, after the seal", func() error { return mints(t, i.v, i.grant, i.sealed) })
	})
}

func (x *site) roleAt(t *testing.T, path string) map[string]any {
	t.Helper()
	s, err := x.root.Logical().ReadWithContext(t.Context(), path)
	if err != nil || s == nil {
		t.Fatal(err)
	}
	return map[string]any{"db_name": s.Data["db_name"], "creation_statements": s.Data["creation_statements"]}
}

// The token of an action ends no lease but those of its own role.
func TestDatabaseTokenEndsNothingElse(t *testing.T) {
	pg := postgres(t)
	vaulttest.Each(t, func(t *testing.T, p engine.Program) {
		x := newSite(t, vaulttest.Open(t, p))
		i := x.issuing(t, x.database(t, pg))
		x.write(t, i.from.Mount+"/roles/other", map[string]any{"db_name": "pg", "creation_statements": madeUsers})
		s, err := x.root.Logical().ReadWithContext(t.Context(), i.from.Mount+"/creds/other")
		if err != nil {
			t.Fatal(err)
		}
		o, err := i.v.open(t.Context(), authoritytest.Use(i.grant, i.sealed, issuedName))
		if err != nil {
			t.Fatal(err)
		}
		put := http.MethodPut
		x.allRefused(t, "the grant", o.token, map[string]attempt{
			"ends another's lease":    {put, "sys/leases/revoke", map[string]any{"lease_id": s.LeaseID}},
			"ends it by its path":     {put, "sys/leases/revoke/" + s.LeaseID, nil},
			"ends a grant":            {put, "sys/leases/revoke", map[string]any{"lease_id": "auth/token/create/x"}},
			"ends its own by no name": {put, "sys/leases/revoke", map[string]any{}},
			"ends them by prefix":     {put, "sys/leases/revoke-prefix/" + i.from.Path(), nil},
			"renews a lease":          {put, "sys/leases/renew", map[string]any{"lease_id": s.LeaseID}},
			"reads another role":      {http.MethodGet, i.from.Mount + "/creds/other", nil},
			"reads its configuration": {http.MethodGet, i.from.Mount + "/config/pg", nil},
			"reads the role":          {http.MethodGet, i.from.RolePath(), nil},
		})
		i.issued(t).Return(t.Context())
		if err := logsIn(t, pg, s.Data["username"].(string), s.Data["password"].(string)); err != nil {
			t.Errorf("the other's user is gone: %v", err)
		}
		if err := x.root.Sys().RevokeWithContext(t.Context(), s.LeaseID); err != nil {
			t.Fatal(err)
		}
	})
}
