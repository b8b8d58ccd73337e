package store

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"bivouac/edge/protocol"
)

// maxBatch bounds how many calls share one COMMIT, and so how long the first of
// them waits for the last.
const maxBatch = 256

var errClosed = protocol.Errorf(protocol.CodeUnavailable, "the store is closed: the server is shutting down; try again")

// errAbandoned is what a function left behind that panicked or ended its
// goroutine.
var errAbandoned = errors.New("store: the function of an Update did not return")

// writer is the one writer of a SQLite file. It takes queued calls into one
// transaction, each in a savepoint, and commits them together. The functions
// run on their callers' goroutines, one at a time, when the writer hands over
// the transaction: a panic is its caller's, and the transaction lives by the
// writer's context alone.
//
// FULL, IOERR, NOMEM and their like may take back everybody's work: then every
// call of the batch runs again once, by itself.
type writer struct {
	store   *Store
	on      *sqliteConn
	queue   chan *call
	stopped chan struct{}
	gone    chan struct{} // closed when the loop has ended
	once    sync.Once
	commits atomic.Int64 // for the ratio of calls to commits
}

// call is one Update on its way through the writer.
type call struct {
	caller Caller
	begun  atomic.Bool // taken by the writer, or withdrawn by the caller: first wins
	now    time.Time
	turn   chan *Tx   // the writer hands over the transaction
	ran    chan error // the caller's function is through
	done   chan error // the outcome
	lost   bool       // the function did not return: never run again
}

func newWriter(s *Store, on *sqliteConn) *writer {
	return &writer{store: s, on: on, queue: make(chan *call), stopped: make(chan struct{}), gone: make(chan struct{})}
}

// do queues fn, runs it when its turn comes, and waits for the commit.
func (w *writer) do(ctx context.Context, c Caller, fn func(*Tx) error) error {
	k := &call{caller: c, turn: make(chan *Tx), ran: make(chan error), done: make(chan error, 1)}
	select {
	case w.queue <- k:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.gone:
		return errClosed
	}
	cancelled := ctx.Done()
	for {
		select {
		case tx := <-k.turn:
			k.run(tx, fn)
		case err := <-k.done:
			return err
		case <-cancelled:
			if k.begun.CompareAndSwap(false, true) {
				return context.Cause(ctx)
			}
			cancelled = nil // it may be committed: only the outcome is honest
		}
	}
}

// run answers the writer whatever fn does, also when it panics.
func (k *call) run(tx *Tx, fn func(*Tx) error) {
	err := errAbandoned
	defer func() { k.ran <- err }()
	err = fn(tx)
}

func (w *writer) stop() {
	w.once.Do(func() { close(w.stopped) })
	<-w.gone
}

// loop runs until stop; calls that it took are answered before it ends.
func (w *writer) loop() {
	defer close(w.gone)
	for {
		select {
		case k := <-w.queue:
			w.batch(k)
		case <-w.stopped:
			return
		}
	}
}

// next is a call that already waits.
func (w *writer) next() *call {
	select {
	case k := <-w.queue:
		return k
	default:
		return nil
	}
}

// batch runs first and whatever waits in one transaction.
func (w *writer) batch(first *call) {
	if err := w.on.control("BEGIN IMMEDIATE"); err != nil {
		if first.begun.CompareAndSwap(false, true) {
			first.done <- w.store.explain(err)
		}
		return
	}
	var calls []*call
	var results []error
	touched := map[Topic]bool{}
	for k := first; k != nil && len(calls) < maxBatch; {
		if k.begun.CompareAndSwap(false, true) {
			err, whole := w.one(k, touched)
			calls, results = append(calls, k), append(results, err)
			if !whole {
				w.apart(calls)
				return
			}
		}
		if len(calls) < maxBatch { // what is taken from the queue is answered
			k = w.next()
		}
	}
	err := w.commit()
	switch {
	case unknown(err):
		w.rollback()
		w.store.topics.wake(touched)
		for i, k := range calls {
			if results[i] == nil {
				results[i] = err
			}
			k.done <- results[i]
		}
		return
	case err != nil:
		w.store.log.Warn("commit failed, calls run again one by one", "calls", len(calls), "error", err)
		w.apart(calls)
		return
	}
	w.commits.Add(1)
	w.store.topics.wake(touched) // first: an answered call woke everybody already
	for i, k := range calls {
		k.done <- results[i]
	}
}

// one runs a call in a savepoint. whole is false when the engine may have taken
// back more than that.
func (w *writer) one(k *call, touched map[Topic]bool) (err error, whole bool) {
	if err := w.on.control("SAVEPOINT one"); err != nil {
		return w.store.explain(err), false
	}
	tx := w.hand(k)
	err = <-k.ran
	tx.over = true
	switch {
	case errors.Is(err, errAbandoned):
		k.lost = true
	case err == nil && tx.broken != nil:
		err = w.store.explain(tx.broken)
	}
	if tx.broken != nil && w.store.dialect.classify(tx.broken) == spoiled {
		return err, false
	}
	if err != nil {
		if undo := w.on.control("ROLLBACK TO one"); undo != nil {
			return err, false
		}
	}
	if end := w.on.control("RELEASE one"); end != nil {
		return w.store.explain(end), false
	}
	if err == nil {
		for t := range tx.touched {
			touched[t] = true
		}
	}
	return err, true
}

// hand gives the transaction to the caller.
func (w *writer) hand(k *call) *Tx {
	tx := w.store.begin(context.Background(), k.caller)
	if k.now.IsZero() {
		k.now = tx.Now
	}
	tx.Now, tx.on, tx.writes = k.now, w.on, true
	k.turn <- tx
	return tx
}

// apart rolls back and runs every call again once, in its own transaction.
func (w *writer) apart(calls []*call) {
	w.rollback()
	for _, k := range calls {
		if k.lost {
			k.done <- errAbandoned
			continue
		}
		touched := map[Topic]bool{}
		err := w.on.control("BEGIN IMMEDIATE")
		if err == nil {
			var whole bool
			if err, whole = w.one(k, touched); err == nil && whole {
				err = w.commit()
			}
			if err != nil || !whole {
				w.rollback()
			}
		}
		if err == nil {
			w.commits.Add(1)
		}
		if err == nil || unknown(err) {
			w.store.topics.wake(touched)
		}
		k.done <- w.store.explain(err)
	}
}

// commit is the real one, unless a simulation stands before it.
func (w *writer) commit() error {
	commit := func() error { return w.on.control("COMMIT") }
	if w.store.commit != nil {
		return w.store.commit(commit)
	}
	return commit()
}

// unknown reports a COMMIT of which nobody can say whether it took place: its
// calls never run again by themselves.
func unknown(err error) bool { return protocol.CodeOf(err) == protocol.CodeOutcomeUnknown }

// rollback ends the transaction; that the engine has done so itself is fine.
func (w *writer) rollback() {
	_ = w.on.control("ROLLBACK")
}

// alone runs fn on the writer's connection before any call: it is for Open.
func (w *writer) alone(ctx context.Context, fn func(plainSQL) error) error {
	if err := w.on.control("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := fn(w.on.conn); err != nil {
		w.rollback()
		return err
	}
	if err := w.on.control("COMMIT"); err != nil {
		w.rollback()
		return err
	}
	return nil
}
