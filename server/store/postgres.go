package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"bivouac/edge/protocol"
)

// Bounds of running an Update again after it lost to another.
const (
	// raceTime is for callers without a deadline: loops, which come back anyway.
	raceTime = 30 * time.Second
	// maxRacePause is the longest of the pauses, which double from a millisecond.
	maxRacePause = 100 * time.Millisecond
)

func postgresDialect() *dialect {
	return &dialect{
		name: "postgres", blob: "BYTEA", lock: " FOR UPDATE",
		migrationLock: `SELECT pg_advisory_xact_lock(7019287401)`,
		classify:      classifyPostgres,
	}
}

// classifyPostgres reads SQLSTATE: 40001 and 40P01 lost a race, class 23 is a
// constraint, class 53 is a lack of disk, memory or connections.
func classifyPostgres(err error) failure {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return failed
	}
	switch {
	case e.Code == "40001" || e.Code == "40P01":
		return raced
	case strings.HasPrefix(e.Code, "23"):
		return refused
	case strings.HasPrefix(e.Code, "53"):
		return spoiled
	}
	return failed
}

// postgresEngine runs each Update in its own serializable transaction, so that
// code sees what it would see with one writer, and runs it again when it lost.
type postgresEngine struct {
	store *Store
	db    *sql.DB
}

func (s *Store) openPostgres(ctx context.Context, dsn string) error {
	s.dialect = postgresDialect()
	if carriesPassword(dsn) {
		return protocol.Errorf(protocol.CodeInvalidArgument,
			"the PostgreSQL DSN holds a password, which other processes may read: keep it in a file named by passfile=, or in a service entry named by service=")
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "the PostgreSQL DSN cannot be read: check its form, such as `host=/run/postgresql dbname=bivouac`")
	}
	db := stdlib.OpenDB(*cfg)
	db.SetMaxIdleConns(8)
	db.SetMaxOpenConns(16)
	s.engine = &postgresEngine{store: s, db: db}
	if err := db.PingContext(ctx); err != nil {
		return &protocol.Error{Code: protocol.CodeUnavailable, Err: err, RetryAfter: time.Second,
			Message: fmt.Sprintf("PostgreSQL at %s does not answer (%v): start it, or correct the DSN", cfg.Host, err)}
	}
	return nil
}

func carriesPassword(dsn string) bool {
	if u, err := url.Parse(dsn); err == nil && strings.HasPrefix(u.Scheme, "postgres") {
		_, set := u.User.Password()
		return set || u.Query().Has("password")
	}
	return strings.Contains(strings.ReplaceAll(dsn, " ", ""), "password=")
}

// pgConn runs statements in one transaction; the driver keeps them prepared.
type pgConn struct {
	dialect *dialect
	tx      *sql.Tx
}

func (c pgConn) exec(ctx context.Context, st *statement, args []any) (sql.Result, error) {
	return c.tx.ExecContext(ctx, c.dialect.sql(st), args...)
}

func (c pgConn) query(ctx context.Context, st *statement, args []any) (*sql.Rows, error) {
	return c.tx.QueryContext(ctx, c.dialect.sql(st), args...)
}

func (e *postgresEngine) view(ctx context.Context, tx *Tx, fn func(*Tx) error) error {
	on, err := e.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return e.begin(ctx, err)
	}
	defer on.Rollback()
	tx.on = pgConn{e.store.dialect, on}
	return fn(tx)
}

// update runs the transaction again for as long as its caller waits: how often it
// loses says only how many others write, not that it cannot win.
func (e *postgresEngine) update(ctx context.Context, c Caller, fn func(*Tx) error) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, raceTime, errOutrun)
		defer cancel()
	}
	now := time.Time{}
	for race := 0; ; race++ {
		tx := e.store.begin(context.WithoutCancel(ctx), c)
		if now.IsZero() {
			now = tx.Now
		}
		tx.Now, tx.writes = now, true
		err := e.attempt(ctx, tx, fn)
		if err == nil {
			e.store.topics.wake(tx.touched)
			return nil
		}
		if tx.broken == nil || classifyPostgres(tx.broken) != raced {
			return err
		}
		if !pauseAfterRace(ctx, race) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

var errOutrun = protocol.Errorf(protocol.CodeUnavailable, "others changed the same rows for %s without a pause; try again", raceTime)

// pauseAfterRace waits with full jitter, so that those who raced do not meet
// again. False: the caller no longer waits.
func pauseAfterRace(ctx context.Context, race int) bool {
	most := min(maxRacePause, time.Millisecond<<min(race, 10))
	pause := time.NewTimer(rand.N(most) + time.Microsecond)
	defer pause.Stop()
	select {
	case <-pause.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// attempt runs fn and commits. The caller's context ends only the wait for a
// connection: a commit whose answer is cut off would be reported as failed.
func (e *postgresEngine) attempt(ctx context.Context, tx *Tx, fn func(*Tx) error) error {
	conn, err := e.db.Conn(ctx)
	if err != nil {
		return e.begin(ctx, err)
	}
	defer conn.Close()
	on, err := conn.BeginTx(tx.ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		return e.begin(ctx, err)
	}
	defer func() {
		tx.over = true
		on.Rollback() // after a commit it does nothing
	}()
	tx.on = pgConn{e.store.dialect, on}
	if err := fn(tx); err != nil {
		return err
	}
	if tx.broken != nil {
		return e.store.explain(tx.broken)
	}
	if err := on.Commit(); err != nil {
		tx.broken = err
		var refusal *pgconn.PgError
		if errors.As(err, &refusal) {
			return e.store.explain(err)
		}
		return &protocol.Error{Code: protocol.CodeOutcomeUnknown, Err: err,
			Message: "the connection to PostgreSQL broke during a commit: read the state again before you repeat the call"}
	}
	return nil
}

func (e *postgresEngine) begin(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, sql.ErrConnDone) || err.Error() == "sql: database is closed":
		return errClosed
	}
	return &protocol.Error{Code: protocol.CodeUnavailable, Err: err, RetryAfter: time.Second,
		Message: fmt.Sprintf("PostgreSQL does not answer (%v): it is tried again with the next call", err)}
}

func (e *postgresEngine) prepare(ctx context.Context, text string) error {
	st, err := e.db.PrepareContext(ctx, text)
	if err != nil {
		return err
	}
	return st.Close()
}

func (e *postgresEngine) migrating(ctx context.Context, fn func(plainSQL) error) error {
	on, err := e.db.BeginTx(ctx, nil)
	if err != nil {
		return e.begin(ctx, err)
	}
	defer on.Rollback()
	if err := fn(on); err != nil {
		return err
	}
	return on.Commit()
}

func (e *postgresEngine) close() error { return e.db.Close() }
