package engine

import (
	"context"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
)

// Ops runs long I/O outside the ticks. A tick starts an op; what the op has to
// say becomes the input of a later tick. It is the only place with goroutines.
type Ops interface {
	// Start runs fn under a key unless one already runs under it, and reports
	// whether it was started.
	Start(key string, fn func(ctx context.Context)) bool
	// Stop cancels the op of a key; it ends by itself soon after.
	Stop(key string)
	// Running reports an op that was started and has not ended.
	Running(key string) bool
	// Run lets ops run until ctx ends, and returns when none is left.
	Run(ctx context.Context) error
}

// errOpStopped is the cause of the end of an op.
var errOpStopped = protocol.Errorf(protocol.CodeCancelled, "the op was stopped: its work is no longer wanted")

// Goroutines is the Ops of a server: one goroutine an op, while Run runs. Before
// Run and after its end nothing starts; the tick that asked finds its work again.
type Goroutines struct{ op.Runner }

// NewGoroutines makes a runner that takes ops once Run runs.
func NewGoroutines() *Goroutines { return new(Goroutines) }

// Stop cancels one op.
func (g *Goroutines) Stop(key string) { g.Runner.Stop(key, errOpStopped) }
