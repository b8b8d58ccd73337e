package policy

import (
	"time"

	"bivouac/edge/protocol"
)

// Slice is a part of a turn's budget, reserved for one boot of one broker.
type Slice struct {
	ID         protocol.SliceID
	Tenant     protocol.TenantID
	Turn       protocol.TurnID
	BrokerBoot string
	// Ceiling is cumulative; Drawn is what the broker reported last.
	CeilingMicroUSD int64
	DrawnMicroUSD   int64
	// What its model calls used, as the broker counted it.
	InputTokens, OutputTokens, ModelCalls int64
	ClosedAt                              time.Time
}
