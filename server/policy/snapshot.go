package policy

import (
	"encoding/json"
	"slices"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/runtime/runtimev1"
)

// SnapshotParams is what activation knows.
type SnapshotParams struct {
	Agent       Agent
	AgentDigest string
	Machines    []Machine
	Generation  int64
	// Grants in force, the newest first: that one is the turn's own.
	Grants     []Grant
	BrokerPool string
	BrokerBoot string
}

// NewSnapshot freezes one turn's policy. PolicyDigest covers everything that
// decides what the turn may do; approvals bind it.
func NewSnapshot(p SnapshotParams) (Snapshot, error) {
	tools, err := AcceptedSet(p.Agent, p.Machines)
	if err != nil {
		return Snapshot{}, err
	}
	var own protocol.GrantID
	var given []Given
	for i, g := range p.Grants {
		if i == 0 {
			own = g.ID
		}
		given = append(given, Given{Grant: g.ID, Credentials: g.Credentials})
	}
	s := Snapshot{
		Agent: p.Agent, AgentDigest: p.AgentDigest, Tools: tools, Generation: p.Generation,
		Grant: own, Grants: given, DataBoundary: p.Agent.DataBoundary,
		BrokerPool: p.BrokerPool, BrokerBoot: p.BrokerBoot,
	}
	b, err := json.Marshal(struct {
		AgentDigest  string
		Profile      string
		DataBoundary string
		Generation   int64
		Grant        protocol.GrantID
		Grants       []Given
		Tools        []*runtimev1.Tool
	}{s.AgentDigest, s.Agent.Profile, s.DataBoundary, s.Generation, s.Grant, s.Grants, s.Tools})
	if err != nil {
		return Snapshot{}, err
	}
	s.PolicyDigest = canonical.Digest(b)
	return s, nil
}

// Encode is the deterministic JSON that a turn keeps, and its digest.
func (s Snapshot) Encode() (encoded []byte, digest string, err error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, "", err
	}
	return b, canonical.Digest(b), nil
}

// DecodeSnapshot reads what Encode wrote, and refuses other bytes.
func DecodeSnapshot(b []byte, digest string) (Snapshot, error) {
	var s Snapshot
	if got := canonical.Digest(b); got != digest {
		return s, protocol.Errorf(protocol.CodeDataLoss, "the turn's snapshot has digest %s, not %s", got, digest)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, protocol.Errorf(protocol.CodeDataLoss, "the turn's snapshot cannot be read: %w", err)
	}
	return s, nil
}

// Tool finds a tool of the definition by reference; the accepted set may be
// narrower.
func (s Snapshot) Tool(ref string) (Tool, bool) {
	i := slices.IndexFunc(s.Agent.Tools, func(t Tool) bool { return t.Ref == ref })
	if i < 0 {
		return Tool{}, false
	}
	return s.Agent.Tools[i], true
}

// Giving are the frozen grants that give a credential, the newest first. A grant
// that came after the activation is not among them. INV-10.
func (s Snapshot) Giving(credential string) []protocol.GrantID {
	var out []protocol.GrantID
	for _, g := range s.Grants {
		if slices.Contains(g.Credentials, credential) {
			out = append(out, g.Grant)
		}
	}
	return out
}

// Accepted finds a tool of the accepted set by alias.
func (s Snapshot) Accepted(alias string) (*runtimev1.Tool, bool) {
	i := slices.IndexFunc(s.Tools, func(t *runtimev1.Tool) bool { return t.Alias == alias })
	if i < 0 {
		return nil, false
	}
	return s.Tools[i], true
}

// Effective is what the running turn may still use: the frozen set without what
// has gone since. What came since is not added. INV-10.
func (s Snapshot) Effective(bound []Machine) []*runtimev1.Tool {
	machines := s.Agent.Machines(bound)
	return slices.DeleteFunc(slices.Clone(s.Tools), func(t *runtimev1.Tool) bool {
		return t.Placement == runtimev1.Placement_PLACEMENT_DEVICE && len(offer(t.Ref, machines)) == 0
	})
}

// Reauthorise checks a call once more, right before its dispatch: the tool is of
// the frozen set, its placement is the one it was shown with, and it is still
// effective. INV-10.
func (s Snapshot) Reauthorise(shown *runtimev1.Tool, bound []Machine) error {
	frozen, ok := s.Accepted(shown.GetAlias())
	if !ok || frozen.Ref != shown.GetRef() || frozen.Placement != shown.GetPlacement() {
		return protocol.Errorf(protocol.CodePolicyDenied, "%s is not a tool of this turn", shown.GetAlias())
	}
	for _, t := range s.Effective(bound) {
		if t.Ref == frozen.Ref {
			return nil
		}
	}
	return protocol.Errorf(protocol.CodePolicyDenied, "%s may no longer be used: no machine of yours allows it now", shown.GetAlias())
}

// Narrow is the lower of two limits in every part; zero means no opinion. INV-10.
func (l Limits) Narrow(o Limits) Limits {
	return Limits{
		MaxModelCalls:   lower(l.MaxModelCalls, o.MaxModelCalls),
		MaxToolCalls:    lower(l.MaxToolCalls, o.MaxToolCalls),
		MaxCorrections:  lower(l.MaxCorrections, o.MaxCorrections),
		MaxTokens:       lower(l.MaxTokens, o.MaxTokens),
		MaxCostMicroUSD: lower(l.MaxCostMicroUSD, o.MaxCostMicroUSD),
		MaxWall:         lower(l.MaxWall, o.MaxWall),
		MaxResultBytes:  lower(l.MaxResultBytes, o.MaxResultBytes),
		MaxQueued:       lower(l.MaxQueued, o.MaxQueued),
		QueueTTL:        lower(l.QueueTTL, o.QueueTTL),
		PlaceWithin:     lower(l.PlaceWithin, o.PlaceWithin),
		SessionIdle:     lower(l.SessionIdle, o.SessionIdle),
		SessionMax:      lower(l.SessionMax, o.SessionMax),
	}
}

func lower[T ~int | ~int32 | ~int64](a, b T) T {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	}
	return min(a, b)
}

// ResourceKey is what an unresolved unknown outcome blocks: the tool with these
// canonical arguments, under whatever alias and in whatever session. INV-5.
func ResourceKey(ref, argumentsDigest string) string { return ref + " " + argumentsDigest }

// Runtime are the limits as the loop knows them.
func (l Limits) Runtime() *runtimev1.Limits {
	return &runtimev1.Limits{
		MaxModelCalls: l.MaxModelCalls, MaxToolCalls: l.MaxToolCalls, MaxCorrections: l.MaxCorrections,
		MaxTokens: l.MaxTokens, MaxCostMicroUsd: l.MaxCostMicroUSD, MaxWallMs: l.MaxWall.Milliseconds(),
		MaxResultBytes: l.MaxResultBytes,
	}
}

// Limits are the sandbox limits as a runner knows them.
func (s Sandbox) Limits() *runnerv1.SandboxLimits {
	return &runnerv1.SandboxLimits{
		MemoryBytes: s.MemoryBytes, CpuMillis: s.CPUMillis, Pids: s.PIDs, DiskBytes: s.DiskBytes,
		ExecTimeoutMs: s.ExecTimeout.Milliseconds(), OutputBytes: s.OutputBytes,
	}
}

// SpecParams is what a turn adds to its snapshot.
type SpecParams struct {
	Attempt protocol.AttemptID // zero for a service-placed turn
	// Conversation before this turn, oldest first.
	Conversation []*runtimev1.Message
	Prompt       string
	// Resume is the checkpoint of an interrupted attempt; nil: from the start.
	Resume *runtimev1.LoopState
	// Settled is what the turn used before; nil: nothing.
	Settled *runtimev1.Settled
}

// Spec is everything that the loop of this turn is told, wherever it runs. The
// instructions are the only system text; the prompt is the last message.
func (s Snapshot) Spec(p SpecParams) *runtimev1.Spec {
	prompt := &runtimev1.Message{Role: runtimev1.Role_ROLE_USER,
		Blocks: []*runtimev1.Block{{Kind: &runtimev1.Block_Text{Text: p.Prompt}}}}
	return &runtimev1.Spec{
		AttemptId: p.Attempt.String(), Adapter: s.Agent.Adapter, Model: s.Agent.Model.Route,
		Instructions: s.Agent.Instructions, Tools: s.Tools, Limits: s.Agent.Limits.Runtime(),
		Messages:        append(slices.Clip(p.Conversation), prompt),
		MaxOutputTokens: s.Agent.Model.MaxOutputTokens, Resume: p.Resume, Settled: p.Settled,
	}
}
