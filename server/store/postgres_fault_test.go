//go:build linux

package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/store"
	"bivouac/server/store/storetest/pgcluster"
)

// cluster starts a PostgreSQL of the test's own, or skips and says so.
func cluster(t *testing.T, settings ...string) *pgcluster.Cluster {
	t.Helper()
	c, err := pgcluster.New(t.Context(), settings...)
	if errors.Is(err, pgcluster.ErrAbsent) {
		t.Skip("SKIPPED: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, c) })
	return c
}

func remove(t *testing.T, c *pgcluster.Cluster) {
	if err := c.Remove(); err != nil {
		t.Errorf("remove the cluster: %v", err)
	}
}

// schema makes an empty schema and returns the DSN that uses it.
func schema(t *testing.T, c *pgcluster.Cluster, dsn, name string) string {
	t.Helper()
	if err := c.Exec(t.Context(), `CREATE SCHEMA `+name); err != nil {
		t.Fatal(err)
	}
	return dsn + " search_path=" + name
}

func openDSN(t *testing.T, dsn string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// hastyFor is how long a store waits that is to be seen giving up. A machine may be so
// busy that nothing is done in it: what has to work is asked of a patient store.
const hastyFor = 3 * time.Second

// hasty opens another store where a patient one is open: it has nothing to migrate.
func hasty(t *testing.T, dsn string) (s *store.Store) {
	t.Helper()
	again(t, "a hasty store", func() (err error) {
		s, err = store.Open(t.Context(), store.Config{DSN: dsn, Patience: hastyFor})
		return err
	})
	t.Cleanup(func() { s.Close() })
	return s
}

func note(ctx context.Context, s *store.Store, name string) error {
	return s.Update(ctx, racing, func(tx *store.Tx) error {
		_, err := tx.EnsureTenant(name)
		return err
	})
}

// there reports a tenant that was noted; it makes none.
func there(t *testing.T, s *store.Store, name string) (found bool) {
	t.Helper()
	undo := errors.New("undo")
	err := s.Update(t.Context(), racing, func(tx *store.Tx) error {
		ten, err := tx.EnsureTenant(name)
		found = err == nil && ten.CreatedAt.Before(tx.Now)
		return errors.Join(err, undo)
	})
	if !errors.Is(err, undo) {
		t.Fatal(err)
	}
	return found
}

// refused wants a refusal with a code and words.
func refused(t *testing.T, what string, err error, code protocol.Code, words ...string) {
	t.Helper()
	if protocol.CodeOf(err) != code {
		t.Errorf("%s: %v (code %q), want code %q", what, err, protocol.CodeOf(err), code)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q does not say %q", what, err, w)
		}
	}
}

// again tries until it works: recovery needs nobody's hand.
func again(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// What one PostgreSQL can do to a server that runs: each fault is told with what
// mends it, nothing is half done, and the same store goes on when it is over.
func TestPostgresFaults(t *testing.T) {
	c := cluster(t, "max_connections=14")
	for i, part := range []struct {
		name string
		test func(*testing.T, *pgcluster.Cluster, string)
	}{
		{"away", faultAway},
		{"hanging", faultHangs},
		{"read-only", faultReadOnly},
		{"out of connections", faultCrowded},
		{"a commit without an answer", faultCommit},
		{"another schema version", faultVersion},
		{"a role that may not", faultBarred},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, c, schema(t, c, c.DSN(), fmt.Sprint("s", i))) })
	}
}

func faultAway(t *testing.T, c *pgcluster.Cluster, dsn string) {
	s := openDSN(t, dsn)
	if err := note(t.Context(), s, "before"); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	refused(t, "an update", note(t.Context(), s, "lost"), protocol.CodeUnavailable, "PostgreSQL")
	refused(t, "a view", s.View(t.Context(), racing, func(tx *store.Tx) error { return nil }), protocol.CodeUnavailable, "PostgreSQL")
	_, err := store.Open(t.Context(), store.Config{DSN: dsn})
	refused(t, "a start", err, protocol.CodeUnavailable, c.Host(), "start it")
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	again(t, "after its return", func() error { return note(t.Context(), s, "after") })
	if !there(t, s, "before") || there(t, s, "lost") || !there(t, s, "after") {
		t.Error("what was answered and what is stored differ")
	}
}

func faultHangs(t *testing.T, c *pgcluster.Cluster, dsn string) {
	patient := openDSN(t, dsn)
	if err := note(t.Context(), patient, "before"); err != nil {
		t.Fatal(err)
	}
	s := hasty(t, dsn)
	if err := c.Hang(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	refused(t, "a probe that cannot wait", s.Probe(ctx), protocol.CodeUnavailable, "in time")
	refused(t, "a view", s.View(t.Context(), racing, func(tx *store.Tx) error { _, err := tx.Principals(); return err }), protocol.CodeUnavailable)
	refused(t, "an update", note(t.Context(), s, "lost"), protocol.CodeUnavailable)
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	again(t, "when it goes on", func() error { return note(t.Context(), s, "after") })
	if there(t, patient, "lost") {
		t.Error("an update that was refused was committed")
	}
}

func faultReadOnly(t *testing.T, c *pgcluster.Cluster, dsn string) {
	s := openDSN(t, dsn)
	set := func(to string) {
		t.Helper()
		for _, text := range []string{`ALTER SYSTEM SET default_transaction_read_only = ` + to, `SELECT pg_reload_conf()`} {
			if err := c.Exec(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("on")
	tries := 0
	again(t, "it takes no writes", func() error {
		tries++
		if err := note(t.Context(), s, fmt.Sprint("early ", tries)); err == nil {
			return errors.New("it still writes")
		}
		return nil
	})
	refused(t, "an update", note(t.Context(), s, "lost"), protocol.CodeUnavailable, "standby", "primary")
	_, err := store.Open(t.Context(), store.Config{DSN: dsn})
	refused(t, "a start", err, protocol.CodeUnavailable, "standby", "primary")
	if err := writable(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	again(t, "when it writes again", func() error { return note(t.Context(), s, "after") })
}

// writable takes the setting back on one connection.
func writable(ctx context.Context, c *pgcluster.Cluster) error {
	db, err := sql.Open("pgx", c.DSN()+" default_transaction_read_only=off")
	if err != nil {
		return err
	}
	defer db.Close()
	for _, text := range []string{`ALTER SYSTEM RESET default_transaction_read_only`, `SELECT pg_reload_conf()`} {
		if _, err := db.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

func faultCrowded(t *testing.T, c *pgcluster.Cluster, dsn string) {
	s := openDSN(t, dsn)
	crowd, err := sql.Open("pgx", c.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer crowd.Close()
	var all []*sql.Conn
	leave := func() {
		for _, one := range all {
			one.Raw(func(any) error { return errors.New("leave") }) // it closes
			one.Close()
		}
		all = nil
	}
	defer leave()
	for len(all) < 40 {
		one, err := crowd.Conn(t.Context())
		if err != nil {
			break
		}
		all = append(all, one)
	}
	// The view holds the one connection that the store has.
	var inner error
	err = s.View(t.Context(), racing, func(tx *store.Tx) error {
		inner = note(t.Context(), s, "lost")
		return nil
	})
	refused(t, "an update without a connection", errors.Join(inner, err), protocol.CodeUnavailable, "max_connections")
	_, err = store.Open(t.Context(), store.Config{DSN: dsn})
	refused(t, "a start", err, protocol.CodeUnavailable, "max_connections")
	leave()
	crowd.Close()
	again(t, "when others left", func() error {
		var inner error
		err := s.View(t.Context(), racing, func(tx *store.Tx) error {
			inner = note(t.Context(), s, "after")
			return nil
		})
		return errors.Join(inner, err)
	})
	if there(t, s, "lost") {
		t.Error("an update that was refused was committed")
	}
}

// A commit whose answer does not come is neither a success nor a failure. INV-5.
func faultCommit(t *testing.T, c *pgcluster.Cluster, dsn string) {
	patient := openDSN(t, dsn)
	s := hasty(t, dsn)
	admin, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for _, text := range []string{
		`CREATE FUNCTION linger() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(9); RETURN NULL; END' LANGUAGE plpgsql`,
		`CREATE CONSTRAINT TRIGGER linger AFTER INSERT ON tenants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION linger()`,
	} {
		if _, err := admin.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, "the commit", note(t.Context(), s, "perhaps"), protocol.CodeOutcomeUnknown, "read the state again")
	if _, err := admin.ExecContext(t.Context(), `DROP TRIGGER linger ON tenants`); err != nil {
		t.Fatal(err)
	}
	if err := note(t.Context(), patient, "after"); err != nil {
		t.Errorf("its positive twin: %v", err)
	}
}

func faultVersion(t *testing.T, c *pgcluster.Cluster, dsn string) {
	s := openDSN(t, dsn)
	admin, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	do := func(text string) {
		t.Helper()
		if _, err := admin.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	unaltered := func() error {
		return s.View(t.Context(), racing, func(tx *store.Tx) error { return tx.Unaltered() })
	}
	if err := unaltered(); err != nil {
		t.Error(err)
	}
	do(`INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES (9999, 'from_tomorrow', 'x', 1)`)
	_, err = store.Open(t.Context(), store.Config{DSN: dsn})
	refused(t, "a start", err, protocol.CodeIncompatible, "9999", "newer server")
	refused(t, "a server that runs", unaltered(), protocol.CodeIncompatible, "9999")
	do(`DELETE FROM schema_migrations WHERE version = 9999`)
	do(`UPDATE meta SET value = value + 1 WHERE name = 'store_epoch'`)
	refused(t, "a server that runs on a restored store", unaltered(), protocol.CodeFailedPrecondition, "restored")
	do(`ALTER TABLE cleanups RENAME TO gone`)
	err = s.View(t.Context(), racing, func(tx *store.Tx) error { _, err := tx.CleanupsDue(1); return err })
	refused(t, "a table that is not there", err, protocol.CodeIncompatible, "schema")
	do(`ALTER TABLE gone RENAME TO cleanups`)
	if err := s.View(t.Context(), racing, func(tx *store.Tx) error { _, err := tx.CleanupsDue(1); return err }); err != nil {
		t.Errorf("its positive twin: %v", err)
	}
}

func faultBarred(t *testing.T, c *pgcluster.Cluster, dsn string) {
	_, err := store.Open(t.Context(), store.Config{DSN: strings.Replace(dsn, "user=bivouac", "user=stranger", 1)})
	refused(t, "an unknown role", err, protocol.CodeFailedPrecondition, "role")
	_, err = store.Open(t.Context(), store.Config{DSN: strings.Replace(dsn, "dbname=postgres", "dbname=nowhere", 1)})
	refused(t, "an unknown database", err, protocol.CodeFailedPrecondition, "nowhere")
	_, err = store.Open(t.Context(), store.Config{DSN: dsn + " password=hunter2"})
	refused(t, "a password in the DSN", err, protocol.CodeInvalidArgument, "passfile=")
	if strings.Contains(err.Error(), "hunter2") { // INV-17
		t.Error("the refusal shows the password")
	}
}

// A failover: the primary is gone, its standby takes no writes yet, then it does.
// Nothing that was answered is lost, and nobody starts the server again.
func TestPostgresFailover(t *testing.T) {
	primary := cluster(t)
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, standby) })
	// What is answered is at the standby too: set at the primary alone.
	for _, text := range []string{`ALTER SYSTEM SET synchronous_standby_names = '*'`, `SELECT pg_reload_conf()`} {
		if err := primary.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	dsn := schema(t, primary, pgcluster.DSN(primary, standby)+" options=-csynchronous_commit=remote_apply", "served")
	s := openDSN(t, dsn)
	if err := note(t.Context(), s, "before"); err != nil {
		t.Fatal(err)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	refused(t, "between two primaries", note(t.Context(), s, "lost"), protocol.CodeUnavailable, "PostgreSQL")
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	again(t, "at the new primary", func() error { return note(t.Context(), s, "after") })
	if !there(t, s, "before") || there(t, s, "lost") {
		t.Error("what was answered and what is stored differ")
	}
}
