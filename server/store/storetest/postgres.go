package storetest

import (
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"bivouac/server/store"
)

// SQLite opens a store in a directory of the test.
func SQLite(t *testing.T) *store.Store {
	t.Helper()
	return must(store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "bivouac.db")}))(t)
}

// Postgres opens a store in a schema of its own; see PostgresDSN.
func Postgres(t *testing.T) *store.Store {
	t.Helper()
	return must(store.Open(t.Context(), store.Config{DSN: PostgresDSN(t)}))(t)
}

// PostgresDSN makes a schema in the database that BIVOUAC_TEST_POSTGRES names, for
// any number of stores, and drops it when the test ends. Without the variable the
// test is skipped, and says so.
func PostgresDSN(t *testing.T) string {
	t.Helper()
	dsn := os.Getenv("BIVOUAC_TEST_POSTGRES")
	if dsn == "" {
		t.Skip("SKIPPED: PostgreSQL is not tested, BIVOUAC_TEST_POSTGRES is not set; run it with: .ci/postgres go test ./server/store/...")
	}
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	schema := "bivouac_test_" + hex.EncodeToString(b[:])
	admin := must(sql.Open("pgx", dsn))(t)
	if _, err := admin.ExecContext(t.Context(), `CREATE SCHEMA `+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(`DROP SCHEMA ` + schema + ` CASCADE`); err != nil {
			t.Errorf("drop schema: %v", err)
		}
		admin.Close()
	})
	return inSchema(dsn, schema)
}

// inSchema adds the search path to a DSN of either form.
func inSchema(dsn, schema string) string {
	if !strings.HasPrefix(dsn, "postgres") {
		return dsn + " search_path=" + schema
	}
	if strings.Contains(dsn, "?") {
		return dsn + "&search_path=" + schema
	}
	return dsn + "?search_path=" + schema
}
