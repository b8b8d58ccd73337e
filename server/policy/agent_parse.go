package policy

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

var (
	agentName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`)
	plainName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$`)
)

// DefinitionDigest is the identity of one version of a definition.
func DefinitionDigest(src []byte) string { return canonical.Digest(src) }

// ParseAgent reads one definition. Its error lists every problem with file, line
// and column. The package documentation has the form; test/demo and cmd/bivouac/cli/defaults have examples.
func ParseAgent(filename string, src []byte) (Agent, error) {
	r := &reader{}
	what := "agent definition " + filename
	if !r.bounded(filename, src) {
		return Agent{}, r.err(what)
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	if diags.HasErrors() {
		r.diagnose(diags)
		return Agent{}, r.err(what)
	}
	top := r.content(file.Body, nil, hcl.BlockHeaderSchema{Type: "agent", LabelNames: []string{"name"}})
	if len(top.Blocks) != 1 {
		at := file.Body.MissingItemRange()
		if len(top.Blocks) > 1 {
			at = top.Blocks[1].DefRange
		}
		r.refuse(at, "a definition has exactly one agent block, not %d", len(top.Blocks))
	}
	if err := r.err(what); err != nil {
		return Agent{}, err
	}
	a := r.agent(top.Blocks[0])
	if err := r.err(what); err != nil {
		return Agent{}, err
	}
	return a, nil
}

func (r *reader) agent(b *hcl.Block) Agent {
	c := r.content(b.Body,
		[]string{"profile", "placement", "allocation", "data_boundary", "instructions", "trust", "adapter",
			"runners", "device_tools", "sandbox_tools", "egress"},
		hcl.BlockHeaderSchema{Type: "model"}, hcl.BlockHeaderSchema{Type: "tool", LabelNames: []string{"name"}},
		hcl.BlockHeaderSchema{Type: "limits"}, hcl.BlockHeaderSchema{Type: "sandbox"},
		hcl.BlockHeaderSchema{Type: "lease"}, hcl.BlockHeaderSchema{Type: "approvals"})
	s := r.section(c, b.DefRange)
	name := "personal"
	s.choice("profile", &name, ProfileNames...)
	p, _ := ProfileOf(name)

	a := p.Default
	a.Name, a.Placement = b.Labels[0], p.Placement
	if !agentName.MatchString(a.Name) {
		r.refuse(b.LabelRanges[0], "an agent's name has lower-case letters, digits and hyphens, begins with a letter and has at most 40 of them")
	}
	s.choice("placement", &a.Placement, "service", "runner")
	r.allocation(s, &a)
	s.choice("trust", &a.Trust, protocol.TrustUntrusted, protocol.TrustTrusted)
	s.choice("adapter", &a.Adapter, protocol.Adapters...)
	s.text("instructions", &a.Instructions)
	s.text("data_boundary", &a.DataBoundary)
	s.texts("runners", &a.Runners)
	r.egress(s, &a)
	a.Instructions = strings.TrimSpace(a.Instructions)
	if a.Instructions == "" {
		r.refuse(s.rangeOf("instructions"), "instructions are missing: they are the agent's only system text")
	}
	if !plainName.MatchString(a.DataBoundary) {
		r.refuse(s.rangeOf("data_boundary"), "data_boundary is missing: name the boundary that model routes must admit, such as \"personal\"")
	}
	r.blocks(c, p, &a)
	r.tools(s, c, p, &a)
	return a
}

// allocation reads whose resources a turn uses. A definition that says the default is the
// same as one that says nothing.
func (r *reader) allocation(s section, a *Agent) {
	kind := AllocationShared
	s.choice("allocation", &kind, AllocationShared, AllocationOwn)
	if kind != AllocationOwn {
		return
	}
	a.Allocation, a.Limits.PlaceWithin = kind, allocationWithin
	if a.Placement != "runner" {
		r.refuse(s.rangeOf("allocation"), "allocation = \"own\" needs placement = \"runner\": a service-placed turn runs in the server")
	}
}

// blocks reads the blocks that occur at most once.
func (r *reader) blocks(c *hcl.BodyContent, p Profile, a *Agent) {
	seen := map[string]bool{}
	readers := map[string]func(*hcl.Block, Profile, *Agent){
		"model": r.model, "limits": r.limits, "sandbox": r.sandbox, "lease": r.lease, "approvals": r.approvals,
	}
	for _, b := range c.Blocks {
		read, single := readers[b.Type]
		if !single {
			continue
		}
		if seen[b.Type] {
			r.refuse(b.DefRange, "there is a second %s block", b.Type)
			continue
		}
		seen[b.Type] = true
		read(b, p, a)
	}
	if !seen["model"] {
		r.refuse(c.MissingItemRange, "the model block is missing: model { route = \"…\" }")
	}
}

func (r *reader) model(b *hcl.Block, p Profile, a *Agent) {
	s := r.section(r.content(b.Body, []string{"route", "max_output_tokens"}), b.DefRange)
	s.text("route", &a.Model.Route)
	if !plainName.MatchString(a.Model.Route) {
		r.refuse(s.rangeOf("route"), "route must name a model route of the broker")
	}
	s.number32("max_output_tokens", &a.Model.MaxOutputTokens, p.Ceiling.Model.MaxOutputTokens)
}

func (r *reader) limits(b *hcl.Block, p Profile, a *Agent) {
	s := r.section(r.content(b.Body, []string{"max_model_calls", "max_tool_calls", "max_corrections",
		"max_tokens", "max_cost_usd", "max_wall", "max_result_bytes", "max_queued", "queue_ttl",
		"place_within", "session_idle", "session_max"}), b.DefRange)
	l, top := &a.Limits, p.Ceiling.Limits
	s.number32("max_model_calls", &l.MaxModelCalls, top.MaxModelCalls)
	s.number32("max_tool_calls", &l.MaxToolCalls, top.MaxToolCalls)
	s.number32("max_corrections", &l.MaxCorrections, top.MaxCorrections)
	s.number("max_tokens", &l.MaxTokens, top.MaxTokens)
	s.dollars("max_cost_usd", &l.MaxCostMicroUSD, top.MaxCostMicroUSD)
	s.duration("max_wall", &l.MaxWall, time.Second, top.MaxWall)
	n := int64(l.MaxResultBytes)
	s.size("max_result_bytes", &n, int64(top.MaxResultBytes))
	l.MaxResultBytes = int32(n)
	queued := int64(l.MaxQueued)
	s.number("max_queued", &queued, int64(top.MaxQueued))
	l.MaxQueued = int(queued)
	s.duration("queue_ttl", &l.QueueTTL, time.Second, top.QueueTTL)
	s.duration("place_within", &l.PlaceWithin, time.Second, top.PlaceWithin)
	s.duration("session_idle", &l.SessionIdle, time.Second, top.SessionIdle)
	s.duration("session_max", &l.SessionMax, time.Second, top.SessionMax)
}

func (r *reader) sandbox(b *hcl.Block, p Profile, a *Agent) {
	s := r.section(r.content(b.Body, []string{"boundary", "memory", "cpu_millis", "pids", "disk",
		"exec_timeout", "output"}), b.DefRange)
	x, top := &a.Sandbox, p.Ceiling.Sandbox
	s.choice("boundary", &a.Boundary, protocol.Boundaries...)
	s.size("memory", &x.MemoryBytes, top.MemoryBytes)
	s.number("cpu_millis", &x.CPUMillis, top.CPUMillis)
	s.number32("pids", &x.PIDs, top.PIDs)
	s.size("disk", &x.DiskBytes, top.DiskBytes)
	s.duration("exec_timeout", &x.ExecTimeout, time.Second, top.ExecTimeout)
	s.size("output", &x.OutputBytes, top.OutputBytes)
}

func (r *reader) lease(b *hcl.Block, p Profile, a *Agent) {
	s := r.section(r.content(b.Body, []string{"authority_ttl", "retention"}), b.DefRange)
	s.duration("authority_ttl", &a.Lease.AuthorityTTL, minAuthorityTTL, p.Ceiling.Lease.AuthorityTTL)
	s.duration("retention", &a.Lease.Retention, minAuthorityTTL, p.Ceiling.Lease.Retention)
	if a.Lease.Retention < a.Lease.AuthorityTTL {
		r.refuse(s.rangeOf("retention"), "retention (%s) is shorter than authority_ttl (%s)", a.Lease.Retention, a.Lease.AuthorityTTL)
	}
}

func (r *reader) approvals(b *hcl.Block, p Profile, a *Agent) {
	s := r.section(r.content(b.Body, []string{"ttl", "on_denied"}), b.DefRange)
	s.duration("ttl", &a.Approvals.TTL, time.Second, p.Ceiling.Approvals.TTL)
	s.choice("on_denied", &a.Approvals.OnDenied, DeniedContinues, DeniedFails)
}

// tools reads every tool of the definition and refuses two with one alias.
func (r *reader) tools(s section, c *hcl.BodyContent, p Profile, a *Agent) {
	where := map[string]hcl.Range{}
	add := func(t Tool, at hcl.Range) {
		if slices.ContainsFunc(a.Tools, func(o Tool) bool { return o.Ref == t.Ref }) {
			r.refuse(at, "the tool %s is named twice", t.Ref)
			return
		}
		if first, taken := where[t.Alias]; taken {
			r.refuse(at, "the alias %q is already used at line %d: one alias has one placement", t.Alias, first.Start.Line)
			return
		}
		where[t.Alias] = at
		a.Tools = append(a.Tools, t)
	}
	r.fixed(s, "device_tools", deviceTools, add)
	r.fixed(s, "sandbox_tools", sandboxTools, add)
	for _, b := range c.Blocks {
		if b.Type == "tool" {
			if t, ok := r.tool(b, p); ok {
				add(t, b.DefRange)
			}
		}
	}
	if a.Placement == "service" && (s.has("sandbox_tools") || slices.ContainsFunc(a.Tools, Tool.inSandbox)) {
		r.refuse(s.rangeOf("sandbox_tools"), "sandbox tools need placement = \"runner\": a service-placed turn has no workspace")
	}
	if a.Placement == "runner" && !slices.ContainsFunc(a.Tools, Tool.inSandbox) {
		r.refuse(s.rangeOf("placement"), "placement \"runner\" needs sandbox_tools: without a workspace the turn belongs in the service")
	}
}

// maxEgress registries of one definition: each is a door of its own in the sandbox.
const maxEgress = 16

// egress reads the registries of sandboxed code.
func (r *reader) egress(s section, a *Agent) {
	s.texts("egress", &a.Egress)
	seen := map[string]bool{}
	for _, name := range a.Egress {
		switch {
		case !plainName.MatchString(name):
			r.refuse(s.rangeOf("egress"), "egress: %q is no name of a destination in the broker's file", name)
		case seen[name]:
			r.refuse(s.rangeOf("egress"), "egress: %q stands twice", name)
		}
		seen[name] = true
	}
	if len(a.Egress) > maxEgress {
		r.refuse(s.rangeOf("egress"), "egress: at most %d destinations", maxEgress)
	}
	if len(a.Egress) > 0 && a.Placement == "service" {
		r.refuse(s.rangeOf("egress"), "egress needs placement = \"runner\": a service-placed turn has no sandbox")
	}
}

// fixed reads a list of tools whose schemas and effects are fixed in code.
func (r *reader) fixed(s section, name string, known []Tool, add func(Tool, hcl.Range)) {
	var refs []string
	s.texts(name, &refs)
	for _, ref := range refs {
		t, ok := named(known, ref)
		if !ok {
			r.refuse(s.rangeOf(name), "there is no %q: %s may hold %s", ref, name, strings.Join(names(known), ", "))
			continue
		}
		add(t, s.rangeOf(name))
	}
}
