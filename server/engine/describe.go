package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/policy"
)

// view is what the broker said last of itself: pool, boot, routes, destinations.
type view struct {
	wake op.Bell

	mu   sync.Mutex // guards below
	desc *brokerv1.DescribeResponse
	at   time.Time
	err  error
}

// staleView is how old the view may be for a turn to begin on it.
const staleView = 30 * time.Second

func newView() *view { return &view{wake: op.NewBell()} }

// current is the view that a turn may begin on.
func (v *view) current(now time.Time) (*brokerv1.DescribeResponse, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.desc == nil && v.err != nil:
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the broker cannot be reached: %w", v.err)
	case v.desc == nil:
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the broker has not answered yet: check that bivouac-broker runs")
	case now.Sub(v.at) > staleView:
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the broker has not answered since %s: check that bivouac-broker runs", v.at.UTC().Format(time.RFC3339))
	}
	return v.desc, nil
}

func (v *view) boot() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.desc.GetBootNonce()
}

// pathsDirectory is where the broker reads its path entries; empty while unknown.
func (v *view) pathsDirectory() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.desc.GetPathsDirectory()
}

// lacks names what a definition stands on and the broker has not: a route, a
// destination. A broker that has not answered lately lacks nothing.
func (v *view) lacks(agent policy.Agent, now time.Time) (warnings []string) {
	d, err := v.current(now)
	if err != nil {
		return nil
	}
	known := map[string]bool{}
	for _, m := range d.GetModels() {
		known["model/"+m.GetName()] = true
	}
	speaks := map[string]*brokerv1.Destination{}
	for _, to := range d.GetDestinations() {
		known[to.GetName()], speaks[to.GetName()] = true, to
	}
	if !known["model/"+agent.Model.Route] {
		warnings = append(warnings, fmt.Sprintf("the broker has no model route %q: its turns will fail until broker.hcl names it and the broker is restarted", agent.Model.Route))
	}
	for _, t := range agent.Tools {
		to := t.Destination()
		switch {
		case !t.InGateway():
		case !known[to]:
			known[to] = true // said once
			warnings = append(warnings, fmt.Sprintf("the broker has no destination %q, which the tool %s calls: its calls will fail until broker.hcl names it", to, t.Alias))
		case speaks[to] == nil:
		case speaks[to].GetMcp() != (t.MCP != nil) || len(speaks[to].GetCommands()) > 0 != (t.SSH != nil):
			warnings = append(warnings, wrongKind(t, speaks[to]))
		case t.SSH != nil && !slices.Contains(speaks[to].GetCommands(), t.SSH.Command):
			warnings = append(warnings, fmt.Sprintf("the destination %q has no command %q, which the tool %s runs: its calls will fail until broker.hcl names it", to, t.SSH.Command, t.Alias))
		}
	}
	if _, err := registries(d, agent.Egress); err != nil {
		warnings = append(warnings, err.Error()+" Until then its turns will fail.")
	}
	return warnings
}

// wrongKind says that a tool and its destination do not meet.
func wrongKind(t policy.Tool, to *brokerv1.Destination) string {
	switch {
	case t.SSH != nil:
		return fmt.Sprintf("the destination %q is no host of SSH, and the tool %s runs a command: its calls will fail until broker.hcl gives it an ssh block", t.Destination(), t.Alias)
	case len(to.GetCommands()) > 0:
		return fmt.Sprintf("the destination %q is a host of SSH, and the tool %s is none: its calls will fail; kind = \"ssh\" runs a command there", t.Destination(), t.Alias)
	case t.MCP != nil:
		return fmt.Sprintf("the destination %q is no MCP server, and the tool %s calls one: its calls will fail until broker.hcl gives it an mcp block", t.Destination(), t.Alias)
	}
	return fmt.Sprintf("the destination %q is an MCP server, and the tool %s is an http tool: its calls will fail; kind = \"mcp\" calls it", t.Destination(), t.Alias)
}

// registries finds what sandboxed code may read packages from.
func registries(d *brokerv1.DescribeResponse, names []string) ([]policy.Registry, error) {
	var out []policy.Registry
	for _, name := range names {
		i := slices.IndexFunc(d.GetDestinations(), func(to *brokerv1.Destination) bool { return to.GetName() == name })
		switch {
		case i < 0:
			return nil, protocol.Errorf(protocol.CodeNotFound, "The broker has no destination %q, which the agent names in egress: add it to broker.hcl.", name)
		case d.Destinations[i].GetEgress() == "":
			return nil, protocol.Errorf(protocol.CodePolicyDenied, "The destination %q is not for sandboxed code: give it an egress block in broker.hcl.", name)
		}
		out = append(out, policy.Registry{Name: name, Protocol: d.Destinations[i].GetEgress(), URL: d.Destinations[i].GetUrl()})
	}
	return out, nil
}

func (v *view) set(d *brokerv1.DescribeResponse, err error, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.err = err
	if err == nil {
		v.desc, v.at = d, at
	}
	v.wake.Ring()
}

func (v *view) age(now time.Time) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return now.Sub(v.at)
}

const describeOp = "describe"

// tickDescribe asks the broker again when the view grows old; a broker that
// cannot be reached is asked every second.
func (e *Engine) tickDescribe(context.Context) (bool, error) {
	now := time.Now()
	if e.view.age(now) < e.cfg.Limits.DescribeEvery || !e.pauses.over(describeOp, now) || e.busy(describeOp) {
		return false, nil
	}
	e.pauses.set(describeOp, now.Add(describePause))
	return e.cfg.Ops.Start(describeOp, func(ctx context.Context) {
		d, err := e.cfg.Broker.Describe(ctx)
		at := time.Now()
		e.settled.put(completion{op: describeOp, apply: func(context.Context) error {
			e.view.set(d, err, at)
			return nil
		}})
	}), nil
}

// describePause is how long a broker that did not answer is left alone: a turn waits for
// the view of it.
const describePause = time.Second

// describeIn is how soon the view has to be asked for: not while it is, nor
// while the last try rests.
func (e *Engine) describeIn() time.Duration {
	now := time.Now()
	if e.busy(describeOp) {
		return describePause
	}
	return min(max(e.cfg.Limits.DescribeEvery-e.view.age(now), e.pauses.left(describeOp, now), 0), describePause)
}

// checkRoute finds a model route of the broker and holds the data boundary against
// it. A turn outside it is refused before the first call. INV-11.
func checkRoute(d *brokerv1.DescribeResponse, name, boundary string) error {
	for _, m := range d.GetModels() {
		if m.Name != name {
			continue
		}
		switch {
		case !m.Priced:
			return protocol.Errorf(protocol.CodePolicyDenied, "The broker has no price for the model route %q: give it one in the broker's file.", name)
		case !slices.Contains(m.DataBoundaries, boundary):
			return protocol.Errorf(protocol.CodePolicyDenied, "The model route %q may not receive data of the boundary %q.", name, boundary)
		}
		return nil
	}
	return protocol.Errorf(protocol.CodeNotFound, "The broker has no model route %q: what broker.hcl says counts once bivouac-broker, or bivouac dev, is restarted.", name)
}
