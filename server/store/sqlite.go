package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"bivouac/edge/protocol"
)

// sqliteDialect: one writer, so no row locks.
func sqliteDialect() *dialect {
	return &dialect{name: "sqlite", blob: "BLOB", classify: classifySQLite}
}

// classifySQLite reads the primary result code. FULL, IOERR, NOMEM, BUSY and
// INTERRUPT may roll the whole transaction back, not only the statement.
func classifySQLite(err error) failure {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return failed
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CONSTRAINT:
		return refused
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return corrupt
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_INTERRUPT:
		return spoiled
	}
	return failed
}

// sqliteEngine is one writer and a small pool of readers over one WAL file.
type sqliteEngine struct {
	store   *Store
	path    string
	adopted bool    // the file knows that it is open
	db      *sql.DB // the writer's
	readers *sql.DB
	free    chan *sqliteConn // the readers; opened at first use
	writer  *writer
}

func (s *Store) openSQLite(ctx context.Context, path string) error {
	s.dialect = sqliteDialect()
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("store: path %s: %w", path, err)
	}
	release, err := LockDirectory(filepath.Dir(path))
	if err != nil {
		return err
	}
	s.release = release
	if err := makeFile(path); err != nil {
		return err
	}
	e := &sqliteEngine{store: s, path: path, free: make(chan *sqliteConn, max(2, min(4, runtime.NumCPU())))}
	if e.db, err = sql.Open("sqlite", sqliteDSN(path, writerPragmas...)); err != nil {
		return fmt.Errorf("store: open %s: %w", path, err)
	}
	if e.readers, err = sql.Open("sqlite", sqliteDSN(path, "query_only(1)")); err != nil {
		return errors.Join(fmt.Errorf("store: open %s: %w", path, err), e.db.Close())
	}
	s.engine = e
	on := &sqliteConn{dialect: s.dialect, db: e.db}
	if err := on.open(ctx); err != nil {
		return notDatabase(path, err)
	}
	for range cap(e.free) {
		e.free <- &sqliteConn{dialect: s.dialect, db: e.readers}
	}
	e.writer = newWriter(s, on)
	go e.writer.loop() // ends in close: the one loop that Open starts
	return nil
}

// makeFile makes the file of a new database. Only the owner reads it; SQLite gives
// its other files the same mode. One that is there and empty was cut off: taking it
// for a new database would forget everything without a word.
func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		return f.Close()
	}
	if !errors.Is(err, fs.ErrExist) {
		return directoryProblem(filepath.Dir(path), err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return directoryProblem(filepath.Dir(path), err)
	}
	if wal, err := os.Stat(path + "-wal"); st.Size() == 0 && (err != nil || wal.Size() == 0) {
		return protocol.Errorf(protocol.CodeDataLoss,
			"%s is empty: restore it with bivouac-server restore; if no server ever ran here, remove it", path)
	}
	return nil
}

// writerPragmas: savepoints keep their journal in memory, erased words do not
// stay in reused pages, and a checkpoint is worth its two fsyncs.
var writerPragmas = []string{"foreign_keys(1)", "secure_delete(FAST)", "temp_store(MEMORY)", "cache_size(-8192)", "wal_autocheckpoint(4096)"}

func sqliteDSN(path string, pragmas ...string) string {
	q := url.Values{"_pragma": append([]string{"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)"}, pragmas...)}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

func notDatabase(path string, err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
			return &protocol.Error{Code: protocol.CodeDataLoss, Err: err,
				Message: fmt.Sprintf("%s is not a usable SQLite database (%v): restore it from a backup, or name another data directory", path, err)}
		case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
			return directoryProblem(filepath.Dir(path), err)
		}
	}
	return fmt.Errorf("store: open %s: %w", path, err)
}

func (e *sqliteEngine) update(ctx context.Context, c Caller, fn func(*Tx) error) error {
	return e.writer.do(ctx, c, fn)
}

func (e *sqliteEngine) guarded(ctx context.Context, c Caller, fn func(*Tx) error) error {
	return e.writer.do(ctx, c, fn)
}

func (e *sqliteEngine) probe(ctx context.Context, c Caller, fn func(*Tx) error) error {
	return e.writer.do(ctx, c, fn)
}

func (e *sqliteEngine) view(ctx context.Context, tx *Tx, fn func(*Tx) error) error {
	var on *sqliteConn
	select {
	case on = <-e.free:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-e.writer.gone:
		return errClosed
	}
	defer func() { e.free <- on }()
	if err := on.open(ctx); err != nil {
		return tx.store.explain(err)
	}
	tx.on = on
	if tx.single {
		return fn(tx)
	}
	if err := on.control("BEGIN"); err != nil {
		return errors.Join(tx.store.explain(err), on.discard())
	}
	// Also after a panic in fn: the reader must not keep its snapshot.
	defer func() {
		tx.over = true
		if err := on.control("ROLLBACK"); err != nil {
			on.discard()
		}
	}()
	return fn(tx)
}

func (e *sqliteEngine) prepare(ctx context.Context, text string) error {
	st, err := e.readers.PrepareContext(ctx, text)
	if err != nil {
		return err
	}
	return st.Close()
}

func (e *sqliteEngine) migrating(ctx context.Context, fn func(plainSQL) error) error {
	return e.writer.alone(ctx, fn)
}

func (e *sqliteEngine) run() {} // the writer runs since it was opened

// shared: the data directory is locked, so nobody else is there.
func (e *sqliteEngine) shared() bool { return false }

// close waits for the writer and for every reader that is out.
func (e *sqliteEngine) close() error {
	if e.writer != nil {
		e.part()
		e.writer.stop()
		for range cap(e.free) {
			(<-e.free).discard()
		}
		e.writer.on.discard()
	}
	return errors.Join(e.readers.Close(), e.db.Close())
}
