package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/jackc/pgx/v5/stdlib"

	"bivouac/edge/protocol"
)

// Examined is what a database was seen to be.
type Examined struct {
	Engine string // "SQLite" or "PostgreSQL"
	// Version of its schema, and the newest that this build knows; a lower one is
	// brought forward at the next start.
	Version, Newest int64
	// Bytes of an SQLite file.
	Bytes int64
}

// Examine looks at a database for a doctor: it neither locks nor migrates nor
// writes, and works while a server runs on it. A database that is not there yet
// is not_found; one of another build is incompatible.
func Examine(ctx context.Context, c Config) (Examined, error) {
	out := Examined{Engine: "SQLite"}
	known, err := migrations()
	if err != nil {
		return out, err
	}
	out.Newest = known[len(known)-1].version
	db, err := examined(c, &out)
	if err != nil {
		return out, err
	}
	defer db.Close()
	if err := db.PingContext(ctx); err != nil {
		return out, unexaminable(c, err)
	}
	if c.Path != "" {
		var verdict string
		if err := db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&verdict); err != nil {
			return out, unexaminable(c, err)
		}
		if verdict != "ok" {
			return out, protocol.Errorf(protocol.CodeDataLoss, "%s is damaged: %s; stop the server and restore it from a backup", c.Path, verdict)
		}
	}
	applied, err := appliedMigrations(ctx, db)
	if err != nil {
		if none, nerr := unmade(ctx, db, c); nerr == nil && none {
			return out, protocol.Errorf(protocol.CodeNotFound, "the database at %s was never finished: it has no table. The start that made it was cut short; where a server ran on it before, bring a backup back with `bivouac-server restore`", c.Path)
		}
		return out, unexaminable(c, err)
	}
	out.Version = int64(len(applied))
	return out, compatible(known, applied)
}

// unmade reports an SQLite file without one table: the start that made it had no room
// to go on, and the next one makes it whole.
func unmade(ctx context.Context, db *sql.DB, c Config) (bool, error) {
	if c.Path == "" {
		return false, nil
	}
	tables := 1
	err := db.QueryRowContext(ctx, `SELECT COUNT(*) FROM sqlite_schema`).Scan(&tables)
	return tables == 0, err
}

func examined(c Config, out *Examined) (*sql.DB, error) {
	if c.Path == "" {
		out.Engine = "PostgreSQL"
		cfg, err := postgresConfig(c.DSN)
		if err != nil {
			return nil, err
		}
		return stdlib.OpenDB(*cfg), nil
	}
	info, err := os.Stat(c.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "there is no database at %s yet: the first start of bivouac-server makes it", c.Path)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be looked at: %w", c.Path, err)
	}
	out.Bytes = info.Size()
	return sql.Open("sqlite", sqliteDSN(c.Path, "query_only(1)"))
}

func unexaminable(c Config, err error) error {
	if c.Path != "" {
		return notDatabase(c.Path, err)
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the PostgreSQL database does not answer: %w; check that it runs and that the DSN is right", fmt.Errorf("%w", err))
}
