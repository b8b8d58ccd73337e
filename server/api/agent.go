package api

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/api/apiv1"
	"bivouac/server/engine"
	"bivouac/server/policy"
	"bivouac/server/store"
)

type agents struct{ Config }

func (s agents) ApplyAgent(ctx context.Context, r *apiv1.ApplyAgentRequest) (*apiv1.ApplyAgentResponse, error) {
	a, err := s.Engine.ApplyAgent(ctx, callerOf(ctx), engine.AgentSource{
		Filename: r.GetFilename(), Source: []byte(r.GetSource()), DryRun: r.GetDryRun(),
	})
	if err != nil {
		return nil, err
	}
	return &apiv1.ApplyAgentResponse{Agent: definitionOut(a.Definition, a.Agent), Changed: a.Changed, Warnings: a.Warnings}, nil
}

func (s agents) ListAgents(ctx context.Context, _ *apiv1.ListAgentsRequest) (*apiv1.ListAgentsResponse, error) {
	var list []policy.Definition
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) (err error) {
		list, err = tx.Definitions()
		return err
	})
	if err != nil {
		return nil, err
	}
	out := &apiv1.ListAgentsResponse{}
	for _, d := range list {
		one := parsedOut(d)
		one.Source = "" // a list is for choosing; GetAgent has the text
		out.Agents = append(out.Agents, one)
	}
	return out, nil
}

func (s agents) GetAgent(ctx context.Context, r *apiv1.GetAgentRequest) (*apiv1.GetAgentResponse, error) {
	var d policy.Definition
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) (err error) {
		d, err = tx.Definition(loginOf(ctx).tenant.ID, r.GetName(), r.GetDigest())
		return err
	})
	if protocol.CodeOf(err) == protocol.CodeNotFound && r.GetDigest() == "" {
		return nil, engine.UnknownAgent(r.GetName())
	}
	if err != nil {
		return nil, err
	}
	return &apiv1.GetAgentResponse{Agent: parsedOut(d)}, nil
}

func (s agents) RecreateInstance(ctx context.Context, r *apiv1.RecreateInstanceRequest) (*apiv1.RecreateInstanceResponse, error) {
	i, err := s.Engine.RecreateInstance(ctx, callerOf(ctx), r.GetAgent())
	if err != nil {
		return nil, err
	}
	return &apiv1.RecreateInstanceResponse{InstanceId: i.ID.String(), Generation: i.Generation}, nil
}

func (s agents) EffectiveTools(ctx context.Context, r *apiv1.EffectiveToolsRequest) (*apiv1.EffectiveToolsResponse, error) {
	found, err := s.Engine.EffectiveTools(ctx, callerOf(ctx), r.GetAgent(), r.GetSessionId())
	if err != nil {
		return nil, err
	}
	out := &apiv1.EffectiveToolsResponse{Agent: found.Agent, AgentDigest: found.AgentDigest, ModelRoute: found.Route, ModelBy: found.ModelBy, ModelWhy: found.ModelWhy,
		ModelIntention: found.ModelIntention, Registries: registriesOut(found.Registries)}
	for _, t := range found.Tools {
		out.Tools = append(out.Tools, &apiv1.EffectiveTool{
			Ref: t.Ref, Alias: t.Alias, Placement: placements[t.Placement], Effect: policy.EffectName(t.Effect),
			NeedsApproval: policy.NeedsApproval(t.Tool), State: t.State, By: t.By, Why: t.Why, Machines: t.Machines, Intention: t.Intention,
		})
	}
	return out, nil
}

// registriesOut are what sandboxes may read packages from.
func registriesOut(all []engine.EffectiveRegistry) (out []*apiv1.Registry) {
	for _, r := range all {
		state := "open"
		if r.By != "" {
			state = engine.ToolRefused
		}
		out = append(out, &apiv1.Registry{Destination: r.Destination, Url: r.URL, Protocol: r.Protocol, Verbs: r.Verbs, State: state, By: r.By, Why: r.Why, Intention: r.Intention})
	}
	return out
}

// placements of tools as people read them.
var placements = map[runtimev1.Placement]string{
	runtimev1.Placement_PLACEMENT_GATEWAY: "broker",
	runtimev1.Placement_PLACEMENT_DEVICE:  "device",
	runtimev1.Placement_PLACEMENT_SANDBOX: "sandbox",
}

// parsedOut reads a stored definition. One that an older server accepted and
// this one cannot read is shown by its text alone.
func parsedOut(d policy.Definition) *apiv1.Agent {
	a, err := policy.ParseAgent(d.Filename, d.Source)
	if err != nil {
		a = policy.Agent{}
	}
	return definitionOut(d, a)
}

func definitionOut(d policy.Definition, a policy.Agent) *apiv1.Agent {
	return &apiv1.Agent{
		Name: d.Name, Digest: d.Digest, Version: int32(d.Version), Source: string(d.Source),
		Profile: a.Profile, Placement: a.Placement, CreatedAt: at(d.CreatedAt),
	}
}
