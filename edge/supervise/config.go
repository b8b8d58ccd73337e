package supervise

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/relay"
	"bivouac/edge/sandbox"
)

// Config of one supervisor.
type Config struct {
	// Dir is the attempt's own directory, 0700. Blobs that the work names lie in
	// blobs/<hex>; socket, journal, workspace and the rest are made here.
	Dir     string
	Attempt protocol.AttemptID
	// BootNonce of the claim; made when empty.
	BootNonce string
	Backend   sandbox.Backend
	// Dial reaches the broker with the device key.
	Dial relay.DialFunc
	// WorkerPath is the bivouac-worker binary on the host; it is statically linked.
	WorkerPath string
	// WorkerFunc replaces sandbox A by a function in this process, for virtual time.
	WorkerFunc func(ctx context.Context, conn net.Conn) error
	// Listener replaces the socket of Dir. It is closed by Run.
	Listener net.Listener
	// Elapsed is the clock of the lease. Default lease.Boottime.
	Elapsed lease.Elapsed
	// NarrowFunc lowers the limits of the work to what the owner allows.
	NarrowFunc func(*runnerv1.SandboxLimits) *runnerv1.SandboxLimits
	// RefuseEgress is the owner's word: no sandbox here reads packages.
	RefuseEgress bool
	// Toolchains that sandboxed code sees.
	Toolchains []Toolchain
	// Caches of packages that sandboxed code may read.
	Caches []Cache
	// WorkerIdle ends a worker that makes no request for so long. Default 5 min.
	WorkerIdle time.Duration
	// BeginIn ends a supervisor that is given no work. Default 2 min.
	BeginIn time.Duration
	// HandOver, closed, ends the attempt as interrupted: it goes on from its last
	// checkpoint in another one. The supervisor waits a moment for the daemon to take
	// its records and ends; what is not taken then stays. Nil: never. Where it is set,
	// to be given no work is no error either.
	HandOver <-chan struct{}
	// Recover: who had the attempt is gone for good, whether it had begun or not. It is
	// interrupted, and this supervisor has its records alone.
	Recover bool
	// StatusCommand shows the machine's owner its state. Default `bivouac-edge status`.
	StatusCommand string
	Log           *slog.Logger
}

// Toolchain is a host folder that sandbox B shows read-only at the same place.
// Its bin folder, where there is one, is on the PATH.
type Toolchain struct {
	Name string
	Path string
}

// Cache is a host folder of packages that sandbox B shows read-only at
// /caches/<name>, with the variables by which tools find it. Nothing that ran in a
// sandbox ever fills one.
type Cache struct {
	Name string
	Path string
	Env  []string
}

func (c Config) withDefaults() (Config, error) {
	if c.Elapsed == nil {
		c.Elapsed = lease.Boottime
	}
	if c.WorkerIdle == 0 {
		c.WorkerIdle = 5 * time.Minute
	}
	if c.BeginIn == 0 {
		c.BeginIn = 2 * time.Minute
	}
	if c.StatusCommand == "" {
		c.StatusCommand = "bivouac-edge status"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("attempt", c.Attempt)
	if c.BootNonce == "" {
		var b [16]byte
		rand.Read(b[:])
		c.BootNonce = hex.EncodeToString(b[:])
	}
	var err error
	switch {
	case c.Attempt.IsZero():
		err = protocol.Errorf(protocol.CodeInvalidArgument, "supervise: the attempt is missing")
	case c.Backend == nil || c.Dial == nil || c.WorkerPath == "" && c.WorkerFunc == nil:
		err = protocol.Errorf(protocol.CodeInvalidArgument, "supervise: backend, broker and worker are needed")
	default:
		c.Dir, err = filepath.Abs(c.Dir)
	}
	return c, err
}

// Places in Dir.
func (c Config) journalDir() string   { return filepath.Join(c.Dir, "journal") }
func (c Config) workDir() string      { return filepath.Join(c.Dir, "work") }
func (c Config) gitDir() string       { return filepath.Join(c.Dir, "work", "git") }
func (c Config) egressDir() string    { return filepath.Join(c.Dir, "work", "egress") }
func (c Config) filesDir() string     { return filepath.Join(c.Dir, "work", "files") } // all that code may write
func (c Config) workspaceDir() string { return filepath.Join(c.filesDir(), "workspace") }
func (c Config) homeDir() string      { return filepath.Join(c.filesDir(), "home") }
