package store

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

func TestOpenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("this is no database, and it is long enough to be seen as none: "+strings.Repeat("x", 600)), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	for name, try := range map[string]struct {
		config Config
		code   protocol.Code
		text   string // that the error names
	}{
		"neither":            {Config{}, protocol.CodeInvalidArgument, "either"},
		"both":               {Config{Path: file, DSN: "dbname=x"}, protocol.CodeInvalidArgument, "either"},
		"missing directory":  {Config{Path: filepath.Join(missing, "bivouac.db")}, protocol.CodeFailedPrecondition, "mkdir -m 0700 -p " + missing},
		"a file as one":      {Config{Path: filepath.Join(file, "bivouac.db")}, protocol.CodeFailedPrecondition, "not a directory"},
		"no database":        {Config{Path: file}, protocol.CodeDataLoss, file},
		"a password":         {Config{DSN: "host=db user=x password=hunter2"}, protocol.CodeInvalidArgument, "passfile="},
		"a password, as URL": {Config{DSN: "postgres://x:hunter2@db/y"}, protocol.CodeInvalidArgument, "passfile="},
		"another form":       {Config{DSN: "postgres://%%"}, protocol.CodeInvalidArgument, "DSN"},
		"nobody there":       {Config{DSN: "host=" + missing + " user=x dbname=y sslmode=disable"}, protocol.CodeUnavailable, missing},
	} {
		s, err := Open(t.Context(), try.config)
		if err == nil {
			s.Close()
		}
		if protocol.CodeOf(err) != try.code || err == nil || !strings.Contains(err.Error(), try.text) {
			t.Errorf("%s: %v (code %q), want %q with %q", name, err, protocol.CodeOf(err), try.code, try.text)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error repeats the password", name)
		}
	}
	openAt(t, t.TempDir()) // and a good one opens
}

// A DSN with a password is refused in every form that the driver reads; one that names
// where the password is kept is not, and neither is a word that only looks like one.
func TestPasswordInTheDSN(t *testing.T) {
	t.Setenv("PGPASSWORD", "of-the-environment")
	for dsn, carries := range map[string]bool{
		"host=h user=u dbname=d password\t=s3cret-canary":         true,
		"host=h dbname=d\npassword\n=\ns3cret-canary":             true,
		"host=h\vpassword = 's3cret canary'":                      true,
		"password=\\s3cret-canary":                                true,
		"host=h Password=s3cret-canary":                           true,
		"host=h sslpassword=s3cret-canary":                        true,
		"postgres://u:s3cret-canary@h/d":                          true,
		"postgresql://u@h/d?password=s3cret-canary":               true,
		"postgres://u@h/d?%70assword=s3cret-canary":               true,
		"postgres://u@h/d?user=x&sslpassword=s3cret-canary":       true,
		"postgres://u@h,i/d?sslmode=disable&passfile=/etc/x":      false,
		"postgres://u@h/d?ssl=true&application_name=password%3Dx": false,
		"host=h user=u dbname='password=x' passfile=/etc/x":       false,
		"service=bivouac servicefile=/nowhere":                    false,
		"host=/run/postgresql dbname=bivouac search_path=a":       false,
		"": false,
	} {
		if got := carriesPassword(dsn); got != carries {
			t.Errorf("%q carries a password: %v", dsn, got)
		}
		_, err := postgresConfig(dsn)
		if carries && protocol.CodeOf(err) != protocol.CodeInvalidArgument || err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", dsn, err)
		}
	}
}

// A second server on one data directory is told who has it.
func TestDirectoryIsLocked(t *testing.T) {
	dir := t.TempDir()
	first := openAt(t, dir)
	_, err := Open(t.Context(), Config{Path: filepath.Join(dir, "bivouac.db")})
	if protocol.CodeOf(err) != protocol.CodeFailedPrecondition {
		t.Fatalf("a second opener: %v", err)
	}
	for _, part := range []string{dir, fmt.Sprint("process ", os.Getpid()), "--data"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %q", err, part)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	openAt(t, dir)
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir)
	if _, err := conversation(s, "red"); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
	if len(entries) < 3 { // lock, database, WAL
		t.Errorf("only %d files", len(entries))
	}
}

// Settings on which durability and constraints stand.
func TestPragmas(t *testing.T) {
	s := openAt(t, t.TempDir())
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000"} {
		var got string
		if err := s.sqlite().migrating(t.Context(), func(on plainSQL) error {
			rows, err := on.QueryContext(t.Context(), "PRAGMA "+pragma)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				if err := rows.Scan(&got); err != nil {
					return err
				}
			}
			return rows.Err()
		}); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s is %s, want %s", pragma, got, want)
		}
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A schema that this build does not know is left alone.
func TestSchemaOfAnotherBuild(t *testing.T) {
	for name, try := range map[string]struct{ change, text string }{
		"newer":   {`INSERT INTO schema_migrations VALUES (99, 'add_wings', 'x', 0)`, "version 99"},
		"another": {`UPDATE schema_migrations SET checksum = 'x' WHERE version = 2`, "version 2"},
	} {
		dir := t.TempDir()
		if err := openAt(t, dir).Close(); err != nil {
			t.Fatal(err)
		}
		reopen := func() error {
			s, err := Open(context.Background(), Config{Path: filepath.Join(dir, "bivouac.db")})
			if err == nil {
				err = s.Close()
			}
			return err
		}
		if err := reopen(); err != nil {
			t.Fatalf("unchanged: %v", err)
		}
		db, err := sql.Open("sqlite", filepath.Join(dir, "bivouac.db"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), try.change); err != nil {
			t.Fatal(err)
		}
		db.Close()
		if err := reopen(); protocol.CodeOf(err) != protocol.CodeIncompatible || !strings.Contains(err.Error(), try.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
