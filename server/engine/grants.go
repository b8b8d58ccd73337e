package engine

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// NewGrant asks for authority of the caller to an agent.
type NewGrant struct {
	Agent       string
	Credentials []string
}

// Layer is one place where authority lived, probed after a revocation.
type Layer struct {
	Name   string
	Probe  string
	Gone   bool
	Detail string
	Took   time.Duration // from our record of the revocation
}

// Revocation is the whole answer to "revoke": every layer, and the receipt.
type Revocation struct {
	Grant   policy.Grant
	Layers  []Layer
	Receipt string // JWS by the broker's receipt key; empty while it is unreachable
}

// CreateGrant makes a grant, has the broker seal it, and stores it.
func (e *Engine) CreateGrant(ctx context.Context, c store.Caller, p NewGrant) (policy.Grant, error) {
	panic("engine: not built")
}

// RevokeGrant ends a grant and all work under it, in every layer. INV-13.
func (e *Engine) RevokeGrant(ctx context.Context, c store.Caller, id protocol.GrantID, reason string) (Revocation, error) {
	panic("engine: not built")
}

// RevokeRunner ends a runner's authority and all its work.
func (e *Engine) RevokeRunner(ctx context.Context, c store.Caller, id protocol.RunnerID, reason string) (execution.Runner, error) {
	panic("engine: not built")
}

// DisablePrincipal ends a principal's authority and all its work.
func (e *Engine) DisablePrincipal(ctx context.Context, c store.Caller, id protocol.PrincipalID) (policy.Principal, error) {
	panic("engine: not built")
}
