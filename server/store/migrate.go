package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"bivouac/edge/protocol"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// plainSQL runs plain texts in the migrating transaction.
type plainSQL interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

// migration is one step forward of the schema; there is no way back.
type migration struct {
	version  int64
	name     string
	text     string
	checksum string
}

// migrations are in order, without gaps, named NNNN_verb_noun.sql.
func migrations() ([]migration, error) {
	entries, err := migrationFiles.ReadDir("migrations")
	if err != nil {
		return nil, err
	}
	var out []migration
	for i, e := range entries {
		number, name, _ := strings.Cut(strings.TrimSuffix(e.Name(), ".sql"), "_")
		v, err := strconv.ParseInt(number, 10, 64)
		if err != nil || v != int64(i+1) {
			return nil, fmt.Errorf("store: migration %s is out of order", e.Name())
		}
		b, err := migrationFiles.ReadFile("migrations/" + e.Name())
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(b)
		out = append(out, migration{v, name, string(b), hex.EncodeToString(sum[:])})
	}
	return out, nil
}

const createMigrations = `CREATE TABLE IF NOT EXISTS schema_migrations (
	version BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)`

// migrate brings the schema forward in one transaction and reads the epoch. It
// refuses a schema that is newer, or that came about by other migrations.
func (s *Store) migrate(ctx context.Context) (epoch uint32, err error) {
	known, err := migrations()
	if err != nil {
		return 0, err
	}
	ctx = context.WithoutCancel(ctx)
	err = s.engine.migrating(ctx, func(on plainSQL) error {
		if s.dialect.migrationLock != "" {
			if _, err := on.ExecContext(ctx, s.dialect.migrationLock); err != nil {
				return err
			}
		}
		if _, err := on.ExecContext(ctx, createMigrations); err != nil {
			return err
		}
		applied, err := appliedMigrations(ctx, on)
		if err != nil {
			return err
		}
		if err := compatible(known, applied); err != nil {
			return err
		}
		for _, m := range known[len(applied):] {
			if err := s.apply(ctx, on, m); err != nil {
				return fmt.Errorf("store: migration %04d_%s: %w", m.version, m.name, err)
			}
		}
		s.version = known[len(known)-1].version
		if n := len(known) - len(applied); n > 0 {
			s.log.Info("schema migrated", "from", len(applied), "to", s.version)
		}
		epoch, err = readEpoch(ctx, on)
		return err
	})
	if err != nil {
		return 0, s.explain(err)
	}
	return epoch, nil
}

// apply runs one statement at a time: not every driver takes several at once.
func (s *Store) apply(ctx context.Context, on plainSQL, m migration) error {
	for text := range strings.SplitSeq(s.dialect.expand(m.text), ";\n") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		if _, err := on.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	s.log.Debug("schema migrated", "version", m.version, "name", m.name)
	_, err := on.ExecContext(ctx, `INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES ($1, $2, $3, $4)`,
		m.version, m.name, m.checksum, time.Now().UnixMicro())
	return err
}

func appliedMigrations(ctx context.Context, on plainSQL) ([]migration, error) {
	rows, err := on.QueryContext(ctx, `SELECT version, name, checksum FROM schema_migrations ORDER BY version`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []migration
	for rows.Next() {
		var m migration
		if err := rows.Scan(&m.version, &m.name, &m.checksum); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

func compatible(known, applied []migration) error {
	for i, m := range applied {
		switch {
		case i >= len(known):
			return protocol.Errorf(protocol.CodeIncompatible,
				"the database has schema version %d, and this server knows versions up to %d: run the newer server that migrated it", applied[len(applied)-1].version, len(known))
		case m.version != known[i].version || m.checksum != known[i].checksum:
			return protocol.Errorf(protocol.CodeIncompatible,
				"schema version %d (%s) of the database was made by another build: run that build, or restore a backup made by this one", m.version, m.name)
		}
	}
	return nil
}

func readEpoch(ctx context.Context, on plainSQL) (uint32, error) {
	rows, err := on.QueryContext(ctx, `SELECT value FROM meta WHERE name = 'store_epoch'`)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var epoch int64
	for rows.Next() {
		if err := rows.Scan(&epoch); err != nil {
			return 0, err
		}
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	if epoch < 1 || epoch > 1<<31-1 {
		return 0, protocol.Errorf(protocol.CodeDataLoss, "the store epoch is %d: restore the database from a backup", epoch)
	}
	return uint32(epoch), nil
}
