package engine

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// Explanation says why something waits and what would change that.
type Explanation struct {
	State  string
	Waited time.Duration
	// WaitingFor is one sentence.
	WaitingFor string
	Runners    []RunnerVerdict
	// Remedies are commands where there is one.
	Remedies []string
}

// RunnerVerdict is what placement says of one runner.
type RunnerVerdict struct {
	Runner   protocol.RunnerID
	Name     string
	Eligible bool
	Reasons  []string
}

// Explain takes the id of a turn or of an attempt.
func (e *Engine) Explain(ctx context.Context, c store.Caller, id string) (Explanation, error) {
	panic("engine: not built")
}
