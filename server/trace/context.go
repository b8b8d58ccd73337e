package trace

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Context is a W3C trace context: who the parent of a turn's root span is.
type Context struct {
	Trace  [16]byte
	Parent [8]byte
	Flags  byte
}

// Parse reads a traceparent (W3C Trace Context, 3.2); ok is false for what is none.
func Parse(header string) (c Context, ok bool) {
	parts := strings.Split(header, "-")
	if len(parts) != 4 || parts[0] != "00" || len(parts[1]) != 32 || len(parts[2]) != 16 || len(parts[3]) != 2 || strings.ToLower(header) != header {
		return c, false
	}
	var flags [1]byte
	for i, to := range [][]byte{c.Trace[:], c.Parent[:], flags[:]} {
		if _, err := hex.Decode(to, []byte(parts[i+1])); err != nil {
			return Context{}, false
		}
	}
	c.Flags = flags[0]
	return c, c.Trace != [16]byte{} && c.Parent != [8]byte{}
}

// String is the traceparent.
func (c Context) String() string {
	return "00-" + hex.EncodeToString(c.Trace[:]) + "-" + hex.EncodeToString(c.Parent[:]) + "-" + hex.EncodeToString([]byte{c.Flags})
}

// sampled is the flag of a trace that is recorded.
const sampled = 1

// Of is the context under which a turn's work runs: in the caller's trace, where
// it gave one, else in one of the turn's own. The span is the turn's root.
func Of(turn, header string) Context {
	c, ok := Parse(header)
	if !ok {
		sum := sha256.Sum256([]byte("trace of " + turn))
		c = Context{Trace: [16]byte(sum[:16]), Flags: sampled}
	}
	c.Parent = spanID(turn, "turn")
	return c
}

// spanID is the same for the same thing, whoever computes it.
func spanID(turn, what string) [8]byte {
	sum := sha256.Sum256([]byte(turn + " " + what))
	return [8]byte(sum[:8])
}
