package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"bivouac/edge/protocol"
)

// Config opens a store. Exactly one of Path and DSN is set.
type Config struct {
	// Path of the SQLite database file; its directory is locked.
	Path string
	// DSN of a PostgreSQL database, with the password in a file or a service entry.
	DSN string
	// MaxConnections to PostgreSQL; zero: 16. Two more carry wake-ups.
	MaxConnections int
	// Patience with one transaction on PostgreSQL; zero: 10 s.
	Patience time.Duration
	Log      *slog.Logger
	// Entropy for ids and salts; crypto/rand when nil. A simulation sets it.
	Entropy io.Reader
	// Commit stands in for every COMMIT on SQLite, and is given the real one. nil in
	// a server. A simulation fails it as disks and lost connections do: before, so
	// that the calls run again one by one, or with outcome_unknown, on either side.
	Commit func(commit func() error) error
}

// Store is the one store. Its methods are safe for concurrent use.
type Store struct {
	log     *slog.Logger
	entropy io.Reader
	commit  func(commit func() error) error
	dialect *dialect
	engine  engine
	epoch   uint32
	version int64 // of the schema
	topics  topics
	release func() error // the lock of the data directory
	closing sync.Once
	closed  error
}

// engine runs transactions on one kind of database.
type engine interface {
	// migrating runs fn alone in a write transaction.
	migrating(ctx context.Context, fn func(plainSQL) error) error
	view(ctx context.Context, tx *Tx, fn func(*Tx) error) error
	update(ctx context.Context, c Caller, fn func(*Tx) error) error
	// guarded is an update whose decisions rest on rows that it locks.
	guarded(ctx context.Context, c Caller, fn func(*Tx) error) error
	// probe is an update that its caller may leave at any time.
	probe(ctx context.Context, c Caller, fn func(*Tx) error) error
	prepare(ctx context.Context, text string) error
	// adopt refuses a database that somebody brought here in a way that it does not
	// survive, unless what it gave out was just made void.
	adopt(ctx context.Context, raised bool) error
	// run starts the engine's own loops, once the schema is known to be good.
	run()
	// shared reports that other servers may use the same database.
	shared() bool
	close() error
}

// Open opens and migrates the database, and refuses a newer one.
func Open(ctx context.Context, c Config) (*Store, error) { return open(ctx, c, nil) }

// open does something alone before the schema is brought forward.
func open(ctx context.Context, c Config, before func(*Store) error) (*Store, error) {
	s := &Store{log: c.Log, entropy: c.Entropy, commit: c.Commit, release: func() error { return nil }}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.entropy == nil {
		s.entropy = rand.Reader
	}
	var err error
	switch {
	case (c.Path == "") == (c.DSN == ""):
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a store needs either the path of an SQLite file or a PostgreSQL DSN")
	case c.Path != "":
		err = s.openSQLite(ctx, c.Path)
	default:
		err = s.openPostgres(ctx, c)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if before != nil {
		if err := before(s); err != nil {
			return nil, errors.Join(s.explain(err), s.Close())
		}
	}
	if s.epoch, err = s.migrate(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.engine.adopt(ctx, before != nil); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.engine.run()
	return s, nil
}

// Shared reports a database that other servers may use too.
func (s *Store) Shared() bool { return s.engine.shared() }

// Close waits for running transactions and releases the lock.
func (s *Store) Close() error {
	s.closing.Do(func() {
		if s.engine != nil {
			s.closed = s.engine.close()
		}
		s.closed = errors.Join(s.closed, s.release())
	})
	return s.closed
}

// Epoch is the upper half of every fence given out by this store.
func (s *Store) Epoch() uint32 { return s.epoch }

// View runs fn in a read transaction: all its statements see one state.
func (s *Store) View(ctx context.Context, c Caller, fn func(*Tx) error) error {
	return s.read(ctx, c, false, fn)
}

func (s *Store) read(ctx context.Context, c Caller, single bool, fn func(*Tx) error) error {
	if err := c.complete(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	tx := s.begin(ctx, c)
	tx.single = single
	defer func() { tx.over = true }()
	return s.engine.view(ctx, tx, fn)
}

// Lookup is a View whose fn asks one statement, and is refused a second: a
// statement sees one state by itself, so that SQLite needs no transaction around
// it. Every call that is authenticated takes this way.
func (s *Store) Lookup(ctx context.Context, c Caller, fn func(*Tx) error) error {
	return s.read(ctx, c, true, fn)
}

// Update runs fn in a write transaction and commits when it returns nil. fn may
// run more than once: it must change nothing but through tx. It holds up every
// other writer, so it does no I/O and never calls Update itself.
//
// A context that ends before fn began withdraws the call; after that the answer
// is waited for, so that what was committed is never reported as failed.
func (s *Store) Update(ctx context.Context, c Caller, fn func(*Tx) error) error {
	if err := c.complete(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.engine.update(ctx, c, fn)
}

// UpdateGuarded is Update for a transaction whose every decision that must hold at
// the commit rests on rows that it locks, or on constraints of the database; what it
// reads beside them may be a moment old. On PostgreSQL it sees a snapshot and is not
// serializable: many sessions that are written at once do not race each other.
func (s *Store) UpdateGuarded(ctx context.Context, c Caller, fn func(*Tx) error) error {
	if err := c.complete(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.engine.guarded(ctx, c, fn)
}

// Subscribe returns a channel that receives after commits that touched a topic.
// It holds at most one pending wake-up. stop ends it.
func (s *Store) Subscribe(t Topic) (wake <-chan struct{}, stop func()) {
	return s.topics.subscribe(t)
}

// Check prepares every statement: it proves that code and schema agree.
func (s *Store) Check(ctx context.Context) error {
	for _, st := range statements {
		if err := s.engine.prepare(ctx, s.dialect.sql(st)); err != nil {
			return fmt.Errorf("store: prepare on %s: %w\n%s", s.dialect.name, err, st.text)
		}
	}
	return nil
}

func (s *Store) begin(ctx context.Context, c Caller) *Tx {
	return &Tx{Now: time.Now().UTC().Truncate(time.Microsecond), caller: c, store: s, ctx: ctx}
}

// explain turns an engine's error into what its caller can act on.
func (s *Store) explain(err error) error {
	var coded *protocol.Error
	if err == nil || errors.As(err, &coded) {
		return err
	}
	switch s.dialect.classify(err) {
	case refused:
		return fmt.Errorf("store: a constraint of the database refuses the write (a change of state must be a legal step, each step is saved by itself, and parents come first): %w", err)
	case raced:
		return &protocol.Error{Code: protocol.CodeUnavailable, Message: "another transaction changed the same rows; try again", Err: err, RetryAfter: 100 * time.Millisecond}
	case spoiled:
		return &protocol.Error{Code: protocol.CodeUnavailable, Err: err,
			Message: fmt.Sprintf("the database cannot write (%v): free disk space or memory where it lives, then try again", err)}
	case corrupt:
		return &protocol.Error{Code: protocol.CodeDataLoss, Err: err,
			Message: fmt.Sprintf("the database file is damaged (%v): stop the server and restore a backup with bivouac-server restore", err)}
	case away, slow, readOnly, crowded, altered, barred:
		return explainPostgres(s.dialect.classify(err), err)
	}
	return fmt.Errorf("store: %w", err)
}
