package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
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

// Bounds of one connection.
const (
	connectTime = 5 * time.Second
	// patience with one transaction: a server that hangs must not hang its clients.
	patience = 10 * time.Second
	// maxFresh is how often an Update begins anew on a fresh connection, when the
	// one that it had was lost before the commit.
	maxFresh = 2
	// defaultConnections of one server; two more listen and tell.
	defaultConnections = 16
)

func postgresDialect() *dialect {
	return &dialect{
		name: "postgres", blob: "BYTEA", lock: " FOR UPDATE",
		migrationLock: `SELECT pg_advisory_xact_lock(7019287401)`,
		classify:      classifyPostgres,
	}
}

// postgresEngine runs each Update in its own serializable transaction, so that
// code sees what it would see with one writer, and runs it again when it lost.
type postgresEngine struct {
	store    *Store
	db       *sql.DB
	pool     int
	patience time.Duration
	hints    *hints
}

func (s *Store) openPostgres(ctx context.Context, c Config) error {
	s.dialect = postgresDialect()
	cfg, err := postgresConfig(c.DSN)
	if err != nil {
		return err
	}
	e := &postgresEngine{store: s, db: stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(byIndex)), pool: c.MaxConnections, patience: c.Patience}
	if e.pool <= 0 {
		e.pool = defaultConnections
	}
	if e.patience <= 0 {
		e.patience = patience
	}
	e.db.SetMaxIdleConns(e.pool)
	e.db.SetMaxOpenConns(e.pool)
	s.engine = e
	var schema sql.NullString
	if err := e.db.QueryRowContext(ctx, `SELECT current_schema()`).Scan(&schema); err != nil {
		return unreachable(cfg, err)
	}
	e.hints = newHints(s, cfg.Copy(), schema.String)
	return nil
}

// byIndex keeps the planner from scanning a small table as a whole: under
// serializable isolation that reads every row of it, so that any two transactions
// race. Every statement has an index; a test holds them to that.
func byIndex(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, `SET enable_seqscan = off`)
	return err
}

// postgresConfig reads a DSN. What it does not say is set for servers: a standby
// is not written to, and a host that does not answer is given up.
func postgresConfig(dsn string) (*pgx.ConnConfig, error) {
	if carriesPassword(dsn) {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument,
			"the PostgreSQL DSN holds a password, which other processes may read: keep it in a file named by passfile=, or in a service entry named by service=")
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the PostgreSQL DSN cannot be read: check its form, such as `host=/run/postgresql dbname=bivouac`")
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTime
	}
	if cfg.ValidateConnect == nil {
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "bivouac-server"
	}
	return cfg, nil
}

// carriesPassword reports that the DSN itself brings a password, of the database or of
// a key: not a file or a service entry that it names, nor the environment. What it says
// is read by the driver alone, which knows more forms than anybody who looks for one.
func carriesPassword(dsn string) bool {
	allowed := []string{} // of its keys, one more each time: the driver names the next that is not
	for range len(dsn) + 1 {
		_, err := pgconn.ParseConfigWithOptions(dsn, pgconn.ParseConfigOptions{ConnStringAllowedKeys: allowed})
		key, next := refusedKey(err)
		switch {
		case !next:
			return false // every key was seen, or the driver cannot read it and says so later
		case strings.EqualFold(key, "password") || strings.EqualFold(key, "sslpassword"):
			return true
		}
		allowed = append(allowed, key)
	}
	return true // the driver names the same again
}

// refusedKey is the key of a DSN that the driver was not allowed to take.
func refusedKey(err error) (key string, ok bool) {
	if err == nil {
		return "", false
	}
	const before = "connection string key "
	text := err.Error()
	i := strings.LastIndex(text, before)
	if i < 0 {
		return "", false
	}
	quoted, err := strconv.QuotedPrefix(text[i+len(before):])
	if err != nil {
		return "", false
	}
	key, err = strconv.Unquote(quoted)
	return key, err == nil
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
	ctx, cancel := context.WithTimeoutCause(ctx, e.patience, errHangs)
	defer cancel()
	on, err := e.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil && ctx.Err() == nil && classifyPostgres(err) == away {
		e.refresh() // they were all of a server that is gone
		on, err = e.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	}
	if err != nil {
		return e.begin(ctx, err)
	}
	defer on.Rollback()
	tx.on, tx.ctx = pgConn{e.store.dialect, on}, ctx
	return fn(tx)
}

func (e *postgresEngine) update(ctx context.Context, c Caller, fn func(*Tx) error) error {
	return e.again(ctx, c, sql.LevelSerializable, fn)
}

func (e *postgresEngine) guarded(ctx context.Context, c Caller, fn func(*Tx) error) error {
	return e.again(ctx, c, sql.LevelRepeatableRead, fn)
}

// again runs the transaction again for as long as its caller waits: how often it
// loses says only how many others write, not that it cannot win.
func (e *postgresEngine) again(ctx context.Context, c Caller, level sql.IsolationLevel, fn func(*Tx) error) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, raceTime, errOutrun)
		defer cancel()
	}
	now, fresh := time.Time{}, 0
	for race := 0; ; race++ {
		tx := e.store.begin(ctx, c)
		if now.IsZero() {
			now = tx.Now
		}
		tx.Now, tx.writes = now, true
		err := e.attempt(ctx, context.WithoutCancel(ctx), level, tx, fn)
		if err == nil {
			e.store.topics.wake(tx.touched)
			e.hints.tell(tx.touched)
			return nil
		}
		switch tx.failure() {
		case raced:
		case away, readOnly:
			e.refresh()
			if fresh++; fresh > maxFresh {
				return err
			}
		default:
			return err
		}
		if !pauseAfterRace(ctx, race) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// failure of the transaction's engine, before its commit was asked for.
func (tx *Tx) failure() failure {
	if tx.broken == nil || tx.asked {
		return failed
	}
	return classifyPostgres(tx.broken)
}

var (
	errOutrun = protocol.Errorf(protocol.CodeUnavailable, "others changed the same rows for %s without a pause; try again", raceTime)
	errHangs  = protocol.Errorf(protocol.CodeUnavailable, "PostgreSQL does not answer in time: it hangs, or is overloaded; look at pg_stat_activity there")
)

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

func (e *postgresEngine) probe(ctx context.Context, c Caller, fn func(*Tx) error) error {
	tx := e.store.begin(ctx, c)
	tx.writes = true
	return e.attempt(ctx, ctx, sql.LevelSerializable, tx, fn)
}

// attempt runs fn and commits. The caller's context ends only the wait for a
// connection: a commit whose answer is cut off would be reported as failed. Within
// is what bounds the rest; what hangs is given up all the same, as what it then is.
func (e *postgresEngine) attempt(ctx, within context.Context, level sql.IsolationLevel, tx *Tx, fn func(*Tx) error) error {
	conn, err := e.db.Conn(ctx)
	if err != nil {
		tx.broken = err
		return e.begin(ctx, err)
	}
	defer conn.Close()
	var cancel context.CancelFunc
	tx.ctx, cancel = context.WithTimeoutCause(within, e.patience, errHangs)
	defer cancel()
	on, err := conn.BeginTx(tx.ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		tx.broken = err
		return e.begin(tx.ctx, err)
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
	return e.commit(tx, on)
}

func (e *postgresEngine) commit(tx *Tx, on *sql.Tx) error {
	err := on.Commit()
	if err == nil {
		return nil
	}
	tx.broken = err
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) && classifyPostgres(err) != away {
		return e.store.explain(err)
	}
	tx.asked = true
	return &protocol.Error{Code: protocol.CodeOutcomeUnknown, Err: err,
		Message: "the connection to PostgreSQL broke during a commit: read the state again before you repeat the call"}
}

// refresh gives every idle connection back: after one was lost to a server that
// is gone or is no primary any more, the others are no better.
func (e *postgresEngine) refresh() {
	e.db.SetMaxIdleConns(-1)
	e.db.SetMaxIdleConns(e.pool)
}

// begin explains why there is no transaction.
func (e *postgresEngine) begin(ctx context.Context, err error) error {
	switch {
	case context.Cause(ctx) == context.DeadlineExceeded:
		return &protocol.Error{Code: protocol.CodeUnavailable, Err: context.DeadlineExceeded, RetryAfter: time.Second,
			Message: "PostgreSQL does not answer in time: check that it runs, and how busy it is"}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, sql.ErrConnDone) || err.Error() == "sql: database is closed":
		return errClosed
	case classifyPostgres(err) == failed || errors.Is(err, driver.ErrBadConn):
		return &protocol.Error{Code: protocol.CodeUnavailable, Err: err, RetryAfter: time.Second,
			Message: fmt.Sprintf("PostgreSQL does not answer (%v): it is tried again with the next call", err)}
	}
	return e.store.explain(err)
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

// adopt: where the database is kept is not this server's to judge.
func (e *postgresEngine) adopt(context.Context, bool) error { return nil }

// run starts the two loops that hear and tell hints; close ends them.
func (e *postgresEngine) run() { e.hints.start() }

func (e *postgresEngine) shared() bool { return true }

func (e *postgresEngine) close() error {
	if e.hints != nil {
		e.hints.close()
	}
	return e.db.Close()
}
