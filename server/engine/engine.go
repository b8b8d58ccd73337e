package engine

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/lease"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/capability"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// Signer signs capabilities with the replica's certified hourly key.
type Signer interface {
	Sign(c capability.Claims) (string, error)
}

// Config of an engine. Store, Broker, Scheduler, Signer, Replica, Thumbprint and
// Elapsed are required; zero Limits mean the defaults.
type Config struct {
	Store     *store.Store
	Broker    Broker
	Scheduler Scheduler
	// Hosts of runners that another scheduler runs; nil: there are none.
	Hosts Hosts
	// Allocations that it starts for single attempts; nil: it starts none.
	Allocations Allocations
	Signer      Signer
	// Replica names this server in owner and connection rows. It stays the same
	// over restarts of one data directory, so that a restarted server takes its
	// own turns up at once.
	Replica protocol.ReplicaID
	// Alone says that no other server can use the store. The zero value does not
	// count on it.
	Alone bool
	// Blobs names the place of artifacts: replicas of one store share it.
	Blobs string
	// Thumbprint of the replica's TLS key: the presenter of the capabilities of
	// service-placed turns.
	Thumbprint string
	Elapsed    lease.Elapsed
	// Ops runs long I/O; nil: goroutines.
	Ops Ops
	Log *slog.Logger
	// Bytes of artifacts, of which unread ones are removed; nil: none are.
	Bytes Bytes
	// EndedFunc is told each turn that has ended, durably, once what it used is
	// settled; it must not wait. Nil: nobody is.
	EndedFunc func(protocol.TurnID)
	// Meter counts what happens; nil: nobody does.
	Meter  Meter
	Limits Limits
	// Quotas of tenants, principals and agents; the zero value has none.
	Quotas policy.Quotas
	// Entropy of identifiers; nil: crypto/rand. A simulation seeds it.
	Entropy io.Reader
}

// Engine joins sessions and execution. Make it with New; Run starts its loops.
// All that it holds in memory can be lost: the store is the truth, and the ticks
// find again what was under way.
type Engine struct {
	cfg     Config
	ids     ids
	live    *LiveHub
	settled *inbox  // completions of ops
	leases  *leases // clocks of held attempts
	links   *links  // runners that talk to this replica
	floors  *floors // what was taken back
	view    *view   // what the broker can reach
	pauses  *pauses // what is not tried again yet
	owned   *owned  // turns that this incarnation drives
	calls   *calls  // gateway actions that it has under way
	due     *due    // model calls that wait for their op
	doubts  op.Bell // something is in doubt
	orphans op.Bell // a replica is gone
	// replicas is who else shares the store.
	replicas *replicas
	// allocated is what another scheduler runs for attempts.
	allocated *allocated
	rested    op.Bell // a slice was closed, for which an approved turn may wait
	hungry    op.Bell // a runner waits for a larger slice
	closed    op.Bell // slices were closed, others may be due
	agents    *definitions
	mended    time.Time // the last restore of the broker's grants that tickRestored saw to
	atOnce    int       // set by Run: how many turns a loop works on at the same time
}

// New makes an engine and starts nothing.
func New(c Config) *Engine {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Entropy == nil {
		c.Entropy = rand.Reader
	}
	if c.Ops == nil {
		c.Ops = NewGoroutines()
	}
	if c.EndedFunc == nil {
		c.EndedFunc = func(protocol.TurnID) {}
	}
	if c.Meter == nil {
		c.Meter = unmetered{}
	}
	c.Limits = c.Limits.orDefault()
	if c.Limits.ReplicaTTL == 0 {
		c.Limits.ReplicaTTL = defaultReplicaTTL
		if c.Alone {
			c.Limits.ReplicaTTL = c.Limits.OwnerTTL
		}
	}
	most := 0
	if c.Allocations != nil {
		most = c.Allocations.Most()
	}
	left := c.Limits.learnsWithin()
	if c.Alone {
		left = 0 // nobody else renews
	}
	return &Engine{
		cfg:     c,
		ids:     ids{entropy: c.Entropy},
		live:    newLiveHub(),
		settled: newInbox(),
		leases:  newLeases(c.Elapsed, left),
		links:   newLinks(),
		floors:  newFloors(),
		view:    newView(),
		pauses:  newPauses(),
		owned:   newOwned(),
		calls:   &calls{},
		due:     newDue(),
		doubts:  op.NewBell(),
		orphans: op.NewBell(),
		rested:  op.NewBell(),
		hungry:  op.NewBell(),
		closed:  op.NewBell(),
		agents:  newDefinitions(),

		replicas:  newReplicas(c, rand.Text()),
		allocated: newAllocated(most),
	}
}

// leaveTimeout bounds the last word of a replica that stops.
const leaveTimeout = time.Second

// togetherMost is how many turns a running loop works on at the same time. Who steps
// the ticks itself has one thing done after the other, the same way every time.
const togetherMost = 16

// Run starts one loop per tick and the op runner, and returns when all are gone.
// Its last word is that others may take its work up.
func (e *Engine) Run(ctx context.Context) error {
	e.atOnce = togetherMost
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return e.cfg.Ops.Run(running) })
	for _, t := range e.Ticks() {
		g.Go(func() error { return e.runTick(running, t) })
	}
	err := g.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if left := e.leave(last); left != nil {
		e.cfg.Log.Warn("others learn by its silence that this replica stopped", "error", left)
	}
	return err
}

// Ready says whether a turn can really be taken now, and if not, why.
func (e *Engine) Ready(ctx context.Context) error {
	if err := e.cfg.Store.View(ctx, store.AsLoop("ready"), func(tx *store.Tx) error {
		_, err := tx.Activatable(1)
		return err
	}); err != nil {
		return err
	}
	_, err := e.view.current(time.Now())
	return err
}
