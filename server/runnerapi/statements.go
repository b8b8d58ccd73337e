package runnerapi

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/store"
)

// sharePoll is the slow poll behind the wake-ups of Shared.
const sharePoll = time.Second

// Shared are the statements over the signing keys of every replica of one store.
// A broker follows one server's feed at a time, and admits what any of them signed.
type Shared struct {
	store   *store.Store
	own     Statements
	replica protocol.ReplicaID
	endsAt  func(jws string) (time.Time, error)
	log     *slog.Logger

	mu      sync.Mutex // guards below
	others  []string
	changed chan struct{} // closed and replaced when any change
}

// SharedConfig of Shared.
type SharedConfig struct {
	Store *store.Store
	// Own statements of this replica.
	Own     Statements
	Replica protocol.ReplicaID
	// EndsAt reads when a statement ends; it refuses what the root did not sign.
	EndsAt func(jws string) (time.Time, error)
	Log    *slog.Logger
}

// Share starts nothing.
func Share(c SharedConfig) *Shared {
	return &Shared{store: c.Store, own: c.Own, replica: c.Replica, endsAt: c.EndsAt, log: c.Log, changed: make(chan struct{})}
}

// Run publishes the own statements in the store and learns those of others, until
// ctx ends.
func (s *Shared) Run(ctx context.Context) error {
	wake, stop := s.store.Subscribe(store.TopicFloors)
	defer stop()
	poll := time.NewTicker(sharePoll)
	defer poll.Stop()
	var published []string
	for {
		own, changed := s.own.Statements()
		err := s.publish(ctx, own, &published)
		if err = errors.Join(err, s.learn(ctx)); err != nil && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "statements over signing keys were not shared", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			s.learned(nil)
		case <-wake:
		case <-poll.C:
		}
	}
}

func (s *Shared) publish(ctx context.Context, own []string, published *[]string) error {
	if slices.Equal(own, *published) {
		return nil
	}
	var rows []execution.Statement
	for _, jws := range own {
		ends, err := s.endsAt(jws)
		if err != nil {
			return err
		}
		rows = append(rows, execution.Statement{JWS: jws, Replica: s.replica, EndsAt: ends})
	}
	err := s.store.Update(ctx, store.AsLoop("statements"), func(tx *store.Tx) error { return tx.PutStatements(rows) })
	if err == nil {
		*published = own
	}
	return err
}

func (s *Shared) learn(ctx context.Context) error {
	others := []string{}
	err := s.store.View(ctx, store.AsLoop("statements"), func(tx *store.Tx) error {
		others = []string{}
		all, err := tx.Statements()
		for _, st := range all {
			if st.Replica != s.replica {
				others = append(others, st.JWS)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	s.learned(others)
	return nil
}

// learned tells listeners when there are other statements than before; nil says
// that the own ones are.
func (s *Shared) learned(others []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if others != nil {
		if slices.Equal(others, s.others) {
			return
		}
		s.others = others
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// Statements of this replica, newest first, then those of the others.
func (s *Shared) Statements() (jws []string, changed <-chan struct{}) {
	own, _ := s.own.Statements()
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(slices.Clone(own), s.others...), s.changed
}

// Delivered passes the word on to whoever waits with a key for it.
func (s *Shared) Delivered(jws []string) { s.own.Delivered(jws) }
