package engine

import (
	"context"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/placement"
	"bivouac/server/planted"
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
	// Warnings name what the broker or this server lacks of it, where that is known.
	Warnings []string
}

// ApplyAgent checks a definition and stores it as the current version. Only an
// admin of the tenant may.
func (e *Engine) ApplyAgent(ctx context.Context, c store.Caller, p AgentSource) (AppliedAgent, error) {
	agent, err := policy.ParseAgent(p.Filename, p.Source)
	if err != nil {
		return AppliedAgent{}, err
	}
	out := AppliedAgent{Agent: agent, Warnings: e.view.lacks(agent, time.Now()), Definition: policy.Definition{Tenant: c.Tenant(), Name: agent.Name,
		Digest: policy.DefinitionDigest(p.Source), Filename: p.Filename, Source: p.Source, CreatedBy: c.Principal()}}
	if agent.Allocation == policy.AllocationOwn && e.cfg.Allocations == nil {
		out.Warnings = append(out.Warnings, "this server starts no allocations: its turns will wait until the nomad block of server.hcl names a token (jobs/README.md), or the agent says allocation = \"shared\"")
	}
	if agent.Allocation == policy.AllocationOwn && e.cfg.Hosts != nil {
		s := agent.Sandbox
		if short := placement.NoRoom(placement.Resources{CPUMillis: s.CPUMillis, MemoryBytes: s.MemoryBytes, DiskBytes: s.DiskBytes}, e.cfg.Hosts.Rooms(c.Tenant())); short != "" {
			out.Warnings = append(out.Warnings, "its turns will wait, for no node of Nomad's on which your runners may run has room for one beside its runner: "+short+"; lower it in the sandbox of the agent, or add a larger node")
		}
	}
	if p.DryRun {
		return out, e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
			current, err := tx.Definition(c.Tenant(), agent.Name, "")
			out.Changed = current.Digest != out.Definition.Digest
			if err == nil {
				out.Definition.Version = current.Version
			}
			if notFound(err) {
				return nil
			}
			return err
		})
	}
	err = e.cfg.Store.Update(ctx, c, func(tx *store.Tx) (err error) {
		def := out.Definition
		def.CreatedAt = tx.Now
		out.Definition, out.Changed, err = tx.PutDefinition(def)
		return err
	})
	return out, err
}

// RecreateInstance raises the generation of the caller's instance of an agent:
// capabilities of earlier ones never work again, and what runs under them ends.
// INV-16.
func (e *Engine) RecreateInstance(ctx context.Context, c store.Caller, agent string) (policy.Instance, error) {
	var inst policy.Instance
	err := e.cfg.Store.Update(ctx, c, func(tx *store.Tx) (err error) {
		if _, _, err := e.definition(tx, c.Tenant(), agent, ""); err != nil {
			return err
		}
		inst, err = tx.EnsureInstance(c.Tenant(), c.Principal(), agent)
		return err
	})
	if err != nil {
		return inst, err
	}
	floor := policy.Floor{Kind: policy.FloorInstance, ID: inst.ID.String(), Minimum: inst.Generation + 1}
	takeBack := e.takeBack
	if planted.Chosen == planted.Generation {
		takeBack = func(ctx context.Context, c store.Caller, _ policy.Floor, record func(tx *store.Tx) error) error {
			return e.cfg.Store.Update(ctx, c, record)
		}
	}
	err = takeBack(ctx, c, floor, func(tx *store.Tx) (err error) {
		next, err := tx.RaiseGeneration(inst.ID)
		if err == nil && next.Generation != floor.Minimum {
			return protocol.Errorf(protocol.CodeConflict, "the instance of %s was recreated meanwhile: try again", agent)
		}
		inst = next
		return err
	})
	return inst, err
}
