package engine

import (
	"bivouac/server/session"
	"bivouac/server/trace"
)

// traceOf is the trace context that a turn's work carries: to the broker in its
// capabilities, to runners with their work.
func traceOf(t session.Turn) string { return trace.Of(t.ID.String(), t.TraceParent).String() }
