package edge

import (
	"testing"

	"bivouac/edge/protocol"
)

// A runner drops its claim, or the result of an effect, at a refusal alone: never
// because a server is away, or cannot say whether its commit took place. INV-5.
func TestWhatIsTriedAgain(t *testing.T) {
	for code, want := range map[protocol.Code]bool{
		protocol.CodeUnavailable:    true,
		protocol.CodeOutcomeUnknown: true,
		protocol.CodeInternal:       true,
		protocol.CodeNotFound:       false,
		protocol.CodeConflict:       false,
		protocol.CodeDataLoss:       false,
	} {
		if got := transient(protocol.Errorf(code, "refused")); got != want {
			t.Errorf("%s is tried again: %t, want %t", code, got, want)
		}
	}
}
