package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5/stdlib"

	"bivouac/edge/protocol"
)

// Tables whose rows a copy of the store holds, parents before children. What is
// not here belongs to the running deployment (who is connected, who leads, what
// waits in a mailbox) or comes with the migrations.
var Tables = []string{
	"meta", "tenants", "principals", "definitions", "instances", "sessions", "snapshots", "turns", "actions", "approvals",
	"events", "event_payloads", "projections", "runners", "bindings", "join_codes", "attempts", "attempt_records",
	"grants", "floors", "slices", "cleanups", "artifacts", "usage_days", "runner_days",
	"ledger_segments", "ledger_hashes", "ledger_heads",
}

// Migration that made a schema what it is.
type Migration struct {
	Version  int64  `json:"version"`
	Name     string `json:"name"`
	Checksum string `json:"checksum"`
}

// Snapshot reads one state of a store, also while a server uses it.
type Snapshot struct {
	// Engine is "sqlite" or "postgres"; a copy of one fills the other.
	Engine string
	Epoch  uint32
	// Migrations that were applied, in order.
	Migrations []Migration
	tx         *sql.Tx
	db         *sql.DB
}

// OpenSnapshot begins one. It changes nothing and takes no lock that a server
// would wait for.
func OpenSnapshot(ctx context.Context, c Config) (*Snapshot, error) {
	s := &Snapshot{Engine: "sqlite"}
	if c.DSN != "" {
		cfg, err := postgresConfig(c.DSN)
		if err != nil {
			return nil, err
		}
		cfg.ValidateConnect = nil // a standby will do
		s.Engine, s.db = "postgres", stdlib.OpenDB(*cfg)
		if err := s.db.PingContext(ctx); err != nil {
			return nil, errors.Join(unreachable(cfg, err), s.db.Close())
		}
	} else {
		path, err := filepath.Abs(c.Path)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "there is no database %s: name the server's data directory with --data", path)
		}
		if s.db, err = sql.Open("sqlite", sqliteDSN(path, "query_only(1)")); err != nil {
			return nil, fmt.Errorf("store: open %s: %w", path, err)
		}
	}
	if err := s.begin(ctx, c); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Snapshot) begin(ctx context.Context, c Config) (err error) {
	if s.tx, err = s.db.BeginTx(ctx, &sql.TxOptions{Isolation: s.isolation(), ReadOnly: s.Engine == "postgres"}); err != nil {
		return s.explain(c, err)
	}
	known, err := migrations()
	if err != nil {
		return err
	}
	applied, err := appliedMigrations(ctx, s.tx)
	if err != nil {
		return s.explain(c, err)
	}
	if err := compatible(known, applied); err != nil {
		return err
	}
	for _, m := range applied {
		s.Migrations = append(s.Migrations, Migration{m.version, m.name, m.checksum})
	}
	s.Epoch, err = readEpoch(ctx, s.tx)
	return err
}

func (s *Snapshot) isolation() sql.IsolationLevel {
	if s.Engine == "postgres" {
		return sql.LevelRepeatableRead
	}
	return sql.LevelDefault
}

func (s *Snapshot) explain(c Config, err error) error {
	if s.Engine == "sqlite" {
		return notDatabase(c.Path, err)
	}
	if kind := classifyPostgres(err); kind == altered {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the database holds no Bivouac: %w", err)
	} else if told := explainPostgres(kind, err); told != nil {
		return told
	}
	return err
}

// Rows gives every row of a table to each, with its columns' names. Values are
// text, 64-bit integers and bytes.
func (s *Snapshot) Rows(ctx context.Context, table string, each func(columns []string, row []any) error) error {
	rows, err := s.tx.QueryContext(ctx, `SELECT * FROM `+table)
	if err != nil {
		return fmt.Errorf("store: copy table %s: %w", table, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	row, into := make([]any, len(columns)), make([]any, len(columns))
	for i := range row {
		into[i] = &row[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return fmt.Errorf("store: copy table %s: %w", table, err)
		}
		if err := each(columns, row); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("store: copy table %s: %w", table, s.explain(Config{Path: table}, err))
	}
	return nil
}

// Close ends the snapshot.
func (s *Snapshot) Close() error {
	var errs []error
	if s.tx != nil {
		errs = append(errs, s.tx.Rollback())
	}
	return errors.Join(append(errs, s.db.Close())...)
}
