package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/execution"
	"bivouac/server/store"
)

// Enrolment is a join code in the hands of a new key.
type Enrolment struct {
	CodeHash   []byte // SHA-256 of the code's secret part
	Runner     protocol.RunnerID
	Name       string // empty: the code's
	PublicKey  []byte // DER, SubjectPublicKeyInfo
	Thumbprint string
}

// EnrollRunner uses a join code: runner row and the owner's binding in one
// transaction. The same code and key may repeat it. The caller certifies the
// key afterwards.
func (e *Engine) EnrollRunner(ctx context.Context, p Enrolment) (execution.Runner, error) {
	panic("engine: not built")
}

// Connect takes the runner's connection row by compare-and-set, restarts its
// lease clocks and judges each lease that it holds. The transport fills in the
// broker's address.
func (e *Engine) Connect(ctx context.Context, c store.Caller, transport string, req *runnerv1.ConnectRequest) (*runnerv1.ConnectResponse, error) {
	panic("engine: not built")
}

// Disconnect says that the transport of an epoch is gone.
func (e *Engine) Disconnect(ctx context.Context, c store.Caller, epoch int64) error {
	panic("engine: not built")
}

// Mail returns deliveries after a cursor, oldest first. An epoch that was taken
// over is stale_fence: the stream ends.
func (e *Engine) Mail(ctx context.Context, c store.Caller, epoch, after int64, limit int) ([]*runnerv1.AttachResponse, error) {
	panic("engine: not built")
}

// Acknowledge forgets deliveries up to a sequence.
func (e *Engine) Acknowledge(ctx context.Context, c store.Caller, req *runnerv1.AcknowledgeRequest) error {
	panic("engine: not built")
}

// Announce records what the runner offers now.
func (e *Engine) Announce(ctx context.Context, c store.Caller, req *runnerv1.AnnounceRequest) error {
	panic("engine: not built")
}

// Leave ends the runner for good, at its owner's wish.
func (e *Engine) Leave(ctx context.Context, c store.Caller) error {
	panic("engine: not built")
}
