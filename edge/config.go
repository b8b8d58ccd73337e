package edge

import (
	"context"
	"log/slog"
	"net"
	"os"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/sized"
	"bivouac/edge/state"
)

// Config of a Daemon.
type Config struct {
	// State is the directory of a runner that has joined.
	State *state.Dir
	// Network for the link; the zero value is the machine's own.
	Network link.Network
	// Elapsed is the clock of leases. Default lease.Boottime.
	Elapsed lease.Elapsed
	// Sandbox says what this machine can confine. Nil: device actions only, with
	// SandboxProblem as the reason. It is swept at the start, so what it makes must
	// be told apart from that of other runners of the machine.
	Sandbox        sandbox.Backend
	SandboxProblem string
	// SandboxFunc makes Sandbox anew when edge.hcl names another folder of control
	// groups; nil: the one that there is stays.
	SandboxFunc func() sandbox.Backend
	// Adapters that supervisors of this machine can run.
	Adapters []string
	// Supervisors starts and reaches them. Nil: device actions only.
	Supervisors Spawner
	// MissingFunc says what turns in sandboxes lack on this machine, with what mends it;
	// empty: nothing. It is asked every few moments, and no turn is taken while it names
	// something. Nil: nothing is ever missing.
	MissingFunc func() string
	// WatchRules calls changed when the file may have changed, until ctx ends; nil
	// leaves it to a look once a second. WatchFile is one.
	WatchRules func(ctx context.Context, file string, changed func()) error
	// WatchAttempts calls changed for each folder that comes when something may have
	// changed in it, until that returns false or ctx ends; nil leaves it to a look every
	// few moments. WatchFolders is one.
	WatchAttempts func(ctx context.Context, folders <-chan string, changed func(folder string) bool) error
	// Control opens the listener of the local control socket, once the directory is
	// this daemon's; nil: there is none.
	Control func() (net.Listener, error)
	// PeerFunc names the user of this machine at the other end of the control socket,
	// or refuses it, for decisions that are the owner's alone. Default: the system's
	// word (PeerUser).
	PeerFunc func(net.Conn) (user string, err error)
	// Metrics is the listener of the page of numbers; nil for none.
	Metrics net.Listener
	Version string
	Log     *slog.Logger
	// FreeFunc is how many bytes the disk of a path has left. Default: the system's.
	FreeFunc func(path string) (int64, error)
	// SyncFunc puts what was journalled on the disk. Default (*os.File).Sync.
	SyncFunc func(*os.File) error
	// Backoff of the link, with full jitter. Default 250 ms up to 5 s: with the time of
	// a dial, a machine is back within ten seconds of its server.
	BackoffBase, BackoffMax time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.State == nil {
		return c, protocol.Errorf(protocol.CodeInvalidArgument, "edge: the state directory is missing")
	}
	if c.Elapsed == nil {
		c.Elapsed = lease.Boottime
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.PeerFunc == nil {
		c.PeerFunc = PeerUser
	}
	if c.FreeFunc == nil {
		c.FreeFunc = sized.Free
	}
	if c.MissingFunc == nil {
		c.MissingFunc = func() string { return "" }
	}
	if c.BackoffBase == 0 {
		c.BackoffBase = 250 * time.Millisecond
	}
	if c.BackoffMax == 0 {
		c.BackoffMax = 5 * time.Second
	}
	if c.Sandbox == nil && c.SandboxProblem == "" {
		c.SandboxProblem = "this build has no sandbox for this system"
	}
	return c, nil
}

// Times of the daemon's own.
const (
	// callTimeout bounds one unary call to the server.
	callTimeout = 10 * time.Second
	// silence ends an attached stream that brought not even a heartbeat. Each one
	// says that the server read the mailbox.
	silence = 15 * time.Second
	// watchEvery is how often leases are looked at: timers do not count suspend.
	watchEvery = time.Second
	// rulesEvery is how often edge.hcl is looked at without a word that it changed.
	rulesEvery = time.Second
	// copyRetry spaces the calls of a machine whose key another one has: its owner ends
	// that, and no retry.
	copyRetry = 30 * time.Second
	// suspendGap between the two clocks means that the machine slept.
	suspendGap = 5 * time.Second
	// stopTimeout is how long a supervisor may take to end its processes before
	// it is killed.
	stopTimeout = 10 * time.Second
	// maxDeviceActions run at once.
	maxDeviceActions = 8
	// maxQuestions wait for the owner at once.
	maxQuestions = 64
)
