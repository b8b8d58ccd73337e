package store

import (
	"context"
	"log/slog"
	"time"

	"bivouac/edge/protocol"
)

// Config opens a store. Exactly one of Path and DSN is set.
type Config struct {
	// Path of the SQLite database file; its directory is locked.
	Path string
	// DSN of a PostgreSQL database, with the password in a file or a service entry.
	DSN string
	Log *slog.Logger
}

// Store is the one store. Its methods are safe for concurrent use.
type Store struct{}

// Open opens and migrates the database, and refuses a newer one.
func Open(ctx context.Context, c Config) (*Store, error) { panic("store: not built") }

// Close waits for running transactions and releases the lock.
func (s *Store) Close() error { panic("store: not built") }

// Epoch is the upper half of every fence given out by this store.
func (s *Store) Epoch() uint32 { panic("store: not built") }

// View runs fn in a read transaction.
func (s *Store) View(ctx context.Context, c Caller, fn func(*Tx) error) error {
	panic("store: not built")
}

// Update runs fn in a write transaction and commits when it returns nil. fn may
// run more than once: it must change nothing but through tx.
func (s *Store) Update(ctx context.Context, c Caller, fn func(*Tx) error) error {
	panic("store: not built")
}

// Topic of wake-ups. A wake-up is a hint after a commit: the reader scans.
type Topic string

const (
	TopicTurns    Topic = "turns"    // queue, deadlines, approvals
	TopicAttempts Topic = "attempts" // placement and leases
	TopicMail     Topic = "mail"     // mailboxes
	TopicEvents   Topic = "events"   // session streams
	TopicFloors   Topic = "floors"   // the feed
)

// Subscribe returns a channel that receives after commits that touched a topic.
// It holds at most one pending wake-up. stop ends it.
func (s *Store) Subscribe(t Topic) (wake <-chan struct{}, stop func()) { panic("store: not built") }

// Tx is one transaction of one caller. Now is fixed when it begins.
type Tx struct {
	Now    time.Time
	caller Caller
}

// Caller of this transaction.
func (tx *Tx) Caller() Caller { return tx.caller }

// Epoch for new fences.
func (tx *Tx) Epoch() uint32 { panic("store: not built") }

// Record is one journal record of an attempt as it was reported.
type Record struct {
	Seq      int64
	At       time.Time
	Body     []byte // encoded runnerv1.Record
	Fence    protocol.Fence
	Evidence bool
}
