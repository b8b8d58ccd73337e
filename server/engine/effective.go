package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// Standing of a tool: what a model would find.
const (
	ToolOffered  = "offered"
	ToolRefused  = "refused"  // offered, but no call would pass now
	ToolWithheld = "withheld" // not offered
)

// What may say no to a tool, beside the broker's own kinds of refusal.
const (
	byPolicy      = "policy"
	byLease       = "lease"       // no machine that offers it is connected
	byEnumeration = "enumeration" // what the machine's owner, or the MCP server, offers
	byMachine     = "machine"
	byCollision   = "collision"
	byAuthority   = "authority"
	byBroker      = "broker"
)

// EffectiveTool is one tool of a definition, and what becomes of it now.
type EffectiveTool struct {
	policy.Tool
	State   string
	By, Why string
	// Intention is the path entry that decides about its destination, whichever way.
	Intention string
	Machines  []string
}

// Effective is what a model of the caller would be offered now.
type Effective struct {
	Agent, AgentDigest, Route string
	// ModelBy and ModelWhy say why no model could be asked; empty when it could.
	ModelBy, ModelWhy string
	// ModelIntention is the path entry that decides about the route.
	ModelIntention string
	Tools          []EffectiveTool
	Registries     []EffectiveRegistry
}

// bound is a machine that is bound to the caller, in whatever state.
type bound struct {
	runner   execution.Runner
	binding  execution.Binding
	attached bool
}

// effective gathers everything that decides, in one view.
type effective struct {
	agent    policy.Agent
	digest   string
	tenant   policy.Tenant
	grants   []policy.Grant // in force
	noGrant  error
	bound    []bound
	machines []policy.Machine
}

// EffectiveTools says of every tool of an agent whether a model would be offered
// it, by the definition of the session when one is named, and what says no. It asks
// the same questions as a turn and grants nothing.
func (e *Engine) EffectiveTools(ctx context.Context, c store.Caller, agent, session string) (Effective, error) {
	var f effective
	err := e.cfg.Store.View(ctx, c, func(tx *store.Tx) error { return e.gather(tx, c, agent, session, &f) })
	if err != nil {
		return Effective{}, err
	}
	out := Effective{Agent: f.agent.Name, AgentDigest: f.digest, Route: f.agent.Model.Route}
	offered, err := policy.AcceptedSet(f.agent, f.machines)
	if err != nil { // the whole set is refused, and with it every turn
		out.ModelBy, out.ModelWhy = byCollision, err.Error()
	}
	for _, t := range f.agent.Tools {
		out.Tools = append(out.Tools, f.judge(t, offered))
	}
	if f.noGrant != nil {
		out.ModelBy, out.ModelWhy = byAuthority, f.noGrant.Error()
	}
	e.reach(ctx, c, f, &out)
	return out, nil
}

func (e *Engine) gather(tx *store.Tx, c store.Caller, agent, sessionID string, f *effective) error {
	if sessionID != "" {
		id, err := protocol.ParseID[protocol.SessionKind](sessionID)
		if err != nil {
			return err
		}
		s, err := tx.Session(id)
		switch {
		case err != nil:
			return err
		case s.Principal != c.Principal():
			return protocol.Errorf(protocol.CodePermissionDenied, "session %s is another person's: what it may use is theirs to see", id)
		case agent != "" && agent != s.Agent:
			return protocol.Errorf(protocol.CodeInvalidArgument, "session %s is with agent %s, not %s", id, s.Agent, agent)
		}
		agent, f.digest = s.Agent, s.AgentDigest
	}
	def, parsed, err := e.definition(tx, c.Tenant(), agent, f.digest)
	if err != nil {
		return err
	}
	f.agent, f.digest = parsed, def.Digest
	if f.tenant, err = tx.Tenant(c.Tenant()); err != nil {
		return err
	}
	if f.grants, err = grantsFor(tx, c.Principal(), agent); protocol.CodeOf(err) == protocol.CodePolicyDenied {
		f.noGrant, err = err, nil
	}
	if err != nil {
		return err
	}
	if f.machines, err = machinesOf(tx, c.Principal()); err != nil {
		return err
	}
	f.bound, err = boundTo(tx, c.Principal())
	return err
}

// boundTo are all machines that are bound to a principal, usable or not.
func boundTo(tx *store.Tx, p protocol.PrincipalID) (out []bound, err error) {
	bindings, err := tx.BindingsOf(p)
	if err != nil {
		return nil, err
	}
	for _, b := range bindings {
		one := bound{binding: b}
		if one.runner, err = tx.Runner(b.Runner); err != nil {
			return nil, err
		}
		conn, err := tx.Connection(b.Runner)
		if err != nil && !notFound(err) {
			return nil, err
		}
		one.attached = err == nil && conn.Attached(tx.Now)
		out = append(out, one)
	}
	return out, nil
}

// judge one tool by what the server knows.
func (f effective) judge(t policy.Tool, offered []*runtimev1.Tool) EffectiveTool {
	out := EffectiveTool{Tool: t, State: ToolOffered}
	withhold := func(by, why string) EffectiveTool {
		out.State, out.By, out.Why = ToolWithheld, by, why
		return out
	}
	same := func(o policy.Tool) bool { return o.Alias == t.Alias && o.Ref != t.Ref }
	if i := slices.IndexFunc(f.agent.Tools, same); i >= 0 {
		return withhold(byCollision, fmt.Sprintf("%s has the alias %s too: rename one of them", f.agent.Tools[i].Ref, t.Alias))
	}
	device := t.Placement == runtimev1.Placement_PLACEMENT_DEVICE
	if !slices.ContainsFunc(offered, func(o *runtimev1.Tool) bool { return o.GetAlias() == t.Alias }) {
		if device {
			return withhold(f.whyNoMachine(t.Ref))
		}
		return withhold(byPolicy, fmt.Sprintf("placement %q of the definition gives its turns no workspace: sandbox tools need placement = \"runner\"", f.agent.Placement))
	}
	if device {
		f.live(&out)
	}
	if c := t.Credential(); c != "" && !slices.ContainsFunc(f.grants, func(g policy.Grant) bool { return slices.Contains(g.Credentials, c) }) {
		out.State, out.By = ToolRefused, byAuthority
		out.Why = fmt.Sprintf("no grant of yours gives the agent the credential %q: bivouac grant create --agent %s --credential %s", c, f.agent.Name, c)
	}
	return out
}

// live names the machines that offer a device action, and whether one is there.
func (f effective) live(t *EffectiveTool) {
	there := false
	for _, m := range f.agent.Machines(f.machines) {
		if !slices.Contains(m.Actions, t.Ref) {
			continue
		}
		t.Machines = append(t.Machines, m.Name)
		there = there || slices.ContainsFunc(f.bound, func(b bound) bool { return b.runner.ID == m.Runner && b.attached && !b.runner.Facts.Paused })
	}
	if !there {
		t.State, t.By = ToolRefused, byLease
		t.Why = fmt.Sprintf("no machine that offers it is connected and not paused: %s; bivouac edge list", strings.Join(t.Machines, ", "))
	}
}

// whyNoMachine says for each bound machine why it does not offer an action.
func (f effective) whyNoMachine(ref string) (by, why string) {
	if len(f.bound) == 0 {
		return byMachine, "no machine is bound to you: bivouac edge invite"
	}
	var whys []string
	for _, b := range f.bound {
		name := b.runner.Name
		var says, what string
		switch {
		case b.runner.State != execution.RunnerActive:
			says, what = byMachine, fmt.Sprintf("%s is %s", name, b.runner.State)
		case !f.agent.AdmitsRunner(name, b.runner.ID):
			says, what = byPolicy, fmt.Sprintf("the definition's runners leave %s out", name)
		case !b.binding.Allows(ref):
			says, what = byPolicy, fmt.Sprintf("your binding to %s allows %s", name, list(b.binding.Actions))
		default:
			says, what = byEnumeration, fmt.Sprintf("the owner of %s offers %s: see edge.hcl there", name, list(b.runner.Facts.Actions))
		}
		if by == "" {
			by = says
		}
		whys = append(whys, what)
	}
	return by, strings.Join(whys, "; ")
}

func list(actions []string) string {
	if len(actions) == 0 {
		return "nothing"
	}
	return strings.Join(actions, ", ")
}

// reach adds what the broker says: caps, paths, boundaries, bindings. One that
// does not answer leaves that open, and says so.
func (e *Engine) reach(ctx context.Context, c store.Caller, f effective, out *Effective) {
	req := &brokerv1.ReachRequest{TenantId: f.tenant.ID.String(), TenantName: f.tenant.Name, Agent: f.agent.Name,
		DataBoundary: f.agent.DataBoundary, Models: []string{f.agent.Model.Route}, Egress: f.agent.Egress}
	var asked []*EffectiveTool
	for i := range out.Tools {
		if t := &out.Tools[i]; t.InGateway() && t.State == ToolOffered {
			asked = append(asked, t)
			req.Tools = append(req.Tools, gatewayTool(t.Tool))
		}
	}
	resp, err := e.cfg.Broker.Reach(ctx, req)
	if err == nil && (len(resp.GetModels()) != 1 || len(resp.GetTools()) != len(asked)) {
		err = protocol.Errorf(protocol.CodeDataLoss, "the broker answered another question")
	}
	if err != nil {
		resp = &brokerv1.ReachResponse{Models: []*brokerv1.Reach{unanswered(err)}}
		for range asked {
			resp.Tools = append(resp.Tools, unanswered(err))
		}
	}
	if m := resp.GetModels()[0]; !m.GetAdmitted() && out.ModelBy == "" {
		out.ModelBy, out.ModelWhy = kind(m), m.GetReason()
	}
	out.ModelIntention = decidedBy(c, resp.GetModels()[0])
	out.Registries = f.registries(c, resp, err)
	for i, t := range asked {
		t.Intention = decidedBy(c, resp.GetTools()[i])
		if r := resp.GetTools()[i]; !r.GetAdmitted() {
			t.State, t.By, t.Why = ToolRefused, kind(r), r.GetReason()
		}
	}
}

func unanswered(err error) *brokerv1.Reach {
	if err == nil {
		err = protocol.Errorf(protocol.CodeIncompatible, "it is of an earlier version: update bivouac-broker")
	}
	return &brokerv1.Reach{Code: string(protocol.CodeOf(err)), Reason: "the broker does not say: " + err.Error()}
}

func kind(r *brokerv1.Reach) string {
	if r.GetBy() == "" {
		return byBroker
	}
	return r.GetBy()
}
