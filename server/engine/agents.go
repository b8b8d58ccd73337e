package engine

import (
	"context"

	"bivouac/server/policy"
	"bivouac/server/store"
)

// AgentSource is an agent definition as a person wrote it.
type AgentSource struct {
	Filename string // for messages
	Source   []byte
	DryRun   bool // check only
}

// AppliedAgent is a definition and what it says.
type AppliedAgent struct {
	Definition policy.Definition
	Agent      policy.Agent
	Changed    bool
}

// ApplyAgent checks a definition and stores it as the current version. Only an
// admin of the tenant may.
func (e *Engine) ApplyAgent(ctx context.Context, c store.Caller, p AgentSource) (AppliedAgent, error) {
	panic("engine: not built")
}

// RecreateInstance raises the generation of the caller's instance of an agent:
// capabilities of earlier ones never work again. INV-16.
func (e *Engine) RecreateInstance(ctx context.Context, c store.Caller, agent string) (policy.Instance, error) {
	panic("engine: not built")
}
