package engine

import (
	"io"
	"sync"
	"time"

	"bivouac/edge/protocol"
)

// ids makes identifiers from one source, which need not be safe for concurrent
// use: a simulation seeds it.
type ids struct {
	mu      sync.Mutex // guards entropy
	entropy io.Reader
}

func newID[K protocol.Kind](e *Engine, now time.Time) protocol.ID[K] {
	e.ids.mu.Lock()
	defer e.ids.mu.Unlock()
	return protocol.NewID[K](now, e.ids.entropy)
}
