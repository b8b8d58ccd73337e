package budget

import (
	"math"

	"bivouac/edge/protocol"
)

// Price of a model route in millionths of a US dollar for a million tokens.
type Price struct {
	InputPerMTok  int64
	OutputPerMTok int64
	// Known is false for a route without a price, which is refused. A local
	// model that costs nothing has a known price of zero.
	Known bool
}

// Cost of a call, rounded up: fractions must not be free.
func (p Price) Cost(t Tokens) (int64, error) {
	if !p.Known {
		return 0, protocol.Errorf(protocol.CodeFailedPrecondition,
			"the model route has no price, and what has no price cannot be budgeted: set price in broker.hcl (zero for a local model)")
	}
	in, okIn := times(p.InputPerMTok, t.Input)
	out, okOut := times(p.OutputPerMTok, t.Output)
	if !okIn || !okOut || in > math.MaxInt64-out {
		return 0, protocol.Errorf(protocol.CodeInvalidArgument, "%d and %d tokens at this price are more than can be counted", t.Input, t.Output)
	}
	sum := in + out
	cost := sum / 1_000_000
	if sum%1_000_000 != 0 {
		cost++
	}
	return cost, nil
}

func times(a, b int64) (int64, bool) {
	if a < 0 || b < 0 {
		return 0, false
	}
	if b != 0 && a > math.MaxInt64/b {
		return 0, false
	}
	return a * b, true
}

// Estimate of the tokens in a text of n bytes, rounded up: three bytes a token,
// less than most texts have.
func Estimate(n int) int64 { return (int64(n) + 2) / 3 }
