package engine

import (
	"crypto/rand"
	"io"
	"log/slog"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/server/capability"
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
	Signer    Signer
	// Replica names this server in owner and connection rows. It stays the same
	// over restarts of one data directory, so that a restarted server takes its
	// own turns up at once.
	Replica protocol.ReplicaID
	// Thumbprint of the replica's TLS key: the presenter of the capabilities of
	// service-placed turns.
	Thumbprint string
	Elapsed    lease.Elapsed
	// Ops runs long I/O; nil: goroutines.
	Ops    Ops
	Log    *slog.Logger
	Limits Limits
	// Entropy of identifiers; nil: crypto/rand. A simulation seeds it.
	Entropy io.Reader
}

// Engine joins sessions and execution. Make it with New; Run starts its loops.
type Engine struct {
	Config
	live *LiveHub
}

// New makes an engine and starts nothing.
func New(c Config) *Engine {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Entropy == nil {
		c.Entropy = rand.Reader
	}
	return &Engine{Config: c, live: newLiveHub()}
}
