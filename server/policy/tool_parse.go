package policy

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol/canonical"
	"bivouac/edge/runtime/loop/schema"
	"bivouac/edge/runtime/runtimev1"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

var (
	aliasForm   = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	headerForm  = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)
	placeholder = regexp.MustCompile(`\{([^{}]*)\}`)
	pathForm    = regexp.MustCompile(`^/[A-Za-z0-9._~!$&'()*+,;=:@%/?{}-]*$`)
)

const (
	defaultHTTPTimeout = 30 * time.Second
	maxHTTPTimeout     = 10 * time.Minute
)

// tool reads one tool block: kind "http", "mcp" or "ssh", or "device" to narrow a fixed
// one.
func (r *reader) tool(b *hcl.Block, p Profile) (Tool, bool) {
	c := r.content(b.Body, []string{"kind", "alias", "description", "destination", "method", "path",
		"credential", "body", "idempotency_header", "timeout", "effect", "recovery", "input", "output", "approval", "inspector", "tool", "schema_digest", "command", "resource", "prompt"}, hcl.BlockHeaderSchema{Type: "lookup"})
	s := r.section(c, b.DefRange)
	before := len(r.problems)
	kind := ""
	s.text("kind", &kind)
	for _, name := range []string{"resource", "prompt"} {
		if s.has(name) {
			r.refuse(s.rangeOf(name), "%ss of MCP servers are not used: kind = \"mcp\" calls tools, and their text is the server's", name)
		}
	}
	var t Tool
	switch kind {
	case "http":
		t = r.http(s, b)
		r.lookup(s, c.Blocks, &t)
	case "mcp":
		t = r.mcp(s, b)
		for _, l := range c.Blocks {
			r.refuse(l.DefRange, "an MCP tool cannot be looked up: lookup is for http tools")
		}
	case "ssh":
		t = r.ssh(s, b)
		for _, l := range c.Blocks {
			r.refuse(l.DefRange, "a command on a host is looked for by its inspect in broker.hcl: lookup is for http tools")
		}
	case "device":
		t = r.device(s, b)
		for _, l := range c.Blocks {
			r.refuse(l.DefRange, "a device action looks for its own effect: lookup is for http tools")
		}
	case "sandbox":
		t = r.sandboxed(s, b)
		for _, l := range c.Blocks {
			r.refuse(l.DefRange, "a sandbox tool looks with its inspector: lookup is for http tools")
		}
		return t, len(r.problems) == before
	default:
		r.refuse(s.rangeOf("kind"), "kind is %q: it must be \"http\", \"mcp\", \"ssh\", \"device\" or \"sandbox\"", kind)
		return Tool{}, false
	}
	for _, name := range []string{"tool", "schema_digest"} {
		if s.has(name) && (kind == "http" || kind == "ssh") {
			r.refuse(s.rangeOf(name), "%s is for kind = \"mcp\"", name)
		}
	}
	if s.has("command") && kind != "ssh" {
		r.refuse(s.rangeOf("command"), "command is for kind = \"ssh\"")
	}
	if s.has("inspector") {
		r.refuse(s.rangeOf("inspector"), "an inspector is a command of a sandbox: it is for kind = \"sandbox\"")
	}
	r.approval(s, p, &t)
	return t, len(r.problems) == before
}

// maxInspector bounds an inspector's command.
const maxInspector = 4 << 10

// sandboxed reads a sandbox tool that says how an interrupted call of it is looked
// for. Only what a shell did cannot be told from the files of the checkpoint.
func (r *reader) sandboxed(s section, b *hcl.Block) Tool {
	t, ok := named(sandboxTools, b.Labels[0])
	if !ok || t.Ref != "sandbox.shell" {
		r.refuse(b.LabelRanges[0], "kind \"sandbox\" is for the tool \"shell\": the others say by themselves what they did")
		return t
	}
	for _, name := range slices.Sorted(maps.Keys(s.attrs)) {
		if name != "kind" && name != "recovery" && name != "inspector" {
			r.refuse(s.rangeOf(name), "%s is fixed for a sandbox tool: it has recovery and inspector", name)
		}
	}
	recovery := ""
	s.text("recovery", &recovery)
	s.text("inspector", &t.Inspector)
	switch {
	case recovery != "inspectable":
		r.refuse(s.rangeOf("recovery"), "recovery is %q: a tool block of kind \"sandbox\" is for \"inspectable\"", recovery)
	case strings.TrimSpace(t.Inspector) == "" || len(t.Inspector) > maxInspector || strings.ContainsRune(t.Inspector, 0):
		r.refuse(s.rangeOf("inspector"), "an inspectable tool needs an inspector: a command of 1 to %d bytes that ends with 0 when the call in BIVOUAC_CALL happened, with 10 when it did not, and with anything else when it cannot tell", maxInspector)
	}
	t.Recovery = runtimev1.Recovery_RECOVERY_INSPECTABLE
	return t
}

func (r *reader) device(s section, b *hcl.Block) Tool {
	t, ok := named(deviceTools, b.Labels[0])
	if !ok {
		r.refuse(b.LabelRanges[0], "there is no device action %q: there are %s", b.Labels[0], strings.Join(names(deviceTools), ", "))
	}
	for name, a := range s.attrs {
		if name != "kind" && name != "approval" {
			r.refuse(a.Range, "%s is fixed for a device action: only approval may be set", name)
		}
	}
	return t
}

// approval reads the rule of one tool. A definition may ask for more than the
// rule of the effect class; less only as far as its profile goes: up to R1 for
// personal and coding, up to R3 for enterprise, never for R4. INV-10.
func (r *reader) approval(s section, p Profile, t *Tool) {
	s.choice("approval", &t.Approval, "always", "never")
	if t.Approval == "never" && t.Effect > p.NeverApprove {
		r.refuse(s.rangeOf("approval"), "approval = \"never\" is not possible for an effect of class %s in the profile %q: it must be asked for",
			EffectName(t.Effect), p.Name)
	}
}

func (r *reader) http(s section, b *hcl.Block) Tool {
	h := &HTTPTool{Timeout: defaultHTTPTimeout}
	t := Tool{Ref: "http:" + b.Labels[0], Alias: b.Labels[0], Placement: runtimev1.Placement_PLACEMENT_GATEWAY, HTTP: h}
	r.gateway(s, b, &t)
	s.text("destination", &h.Destination)
	s.text("credential", &h.Credential)
	r.reach(s, h.Destination, h.Credential)
	r.request(s, h)
	r.arguments(s, t)
	r.recovery(s, t)
	return t
}

// gateway reads what every gateway tool says of itself. A model sees this, and
// nothing that a destination says.
func (r *reader) gateway(s section, b *hcl.Block, t *Tool) {
	s.text("alias", &t.Alias)
	if !aliasForm.MatchString(t.Alias) || !plainName.MatchString(b.Labels[0]) {
		r.refuse(s.rangeOf("alias"), "%q cannot be shown to a model: an alias has letters, digits, underscores and hyphens, at most 64", t.Alias)
	}
	s.text("description", &t.Description)
	if t.Description == "" {
		r.refuse(s.rangeOf("description"), "description is missing: the model chooses by it")
	}
	t.Effect = classOf(s, "effect", effects)
	t.Recovery = classOf(s, "recovery", recoveries)
	t.InputSchema = r.schema(s, "input", true)
	t.OutputSchema = r.schema(s, "output", false)
}

// classOf reads an effect or a recovery class; both are required.
func classOf[T ~int32](s section, name string, of map[string]T) T {
	known := make([]string, 0, len(of))
	for k := range of {
		known = append(known, k)
	}
	slices.Sort(known)
	text := ""
	s.text(name, &text)
	v, ok := of[text]
	if !ok {
		s.refuse(s.rangeOf(name), "%s is %q: it must be one of %s", name, text, strings.Join(known, ", "))
	}
	return v
}

// reach checks where a gateway tool goes, and with which credential.
func (r *reader) reach(s section, destination, credential string) {
	if !plainName.MatchString(destination) {
		if s.has("credential") {
			r.refuse(s.rangeOf("credential"), "a credential needs a destination: the broker injects it there and nowhere else")
		}
		r.refuse(s.rangeOf("destination"), "destination must name a destination of the broker")
	}
	if s.has("credential") && !plainName.MatchString(credential) {
		r.refuse(s.rangeOf("credential"), "credential must be the name of a credential, never its value")
	}
}

func (r *reader) request(s section, h *HTTPTool) {
	h.Method = "GET"
	s.choice("method", &h.Method, "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
	s.text("path", &h.Path)
	if !pathForm.MatchString(h.Path) || strings.HasPrefix(h.Path, "//") || strings.Contains(h.Path, "/..") {
		r.refuse(s.rangeOf("path"), "path must begin with one / and stay below the destination; {name} stands for an argument")
	}
	s.texts("body", &h.Body)
	if len(h.Body) > 0 && (h.Method == "GET" || h.Method == "HEAD") {
		r.refuse(s.rangeOf("body"), "a %s request has no body", h.Method)
	}
	s.text("idempotency_header", &h.IdempotencyHeader)
	if s.has("idempotency_header") && !headerForm.MatchString(h.IdempotencyHeader) {
		r.refuse(s.rangeOf("idempotency_header"), "idempotency_header must be the name of a header")
	}
	s.duration("timeout", &h.Timeout, time.Second, maxHTTPTimeout)
}

// arguments checks that the request uses only arguments that always exist.
func (r *reader) arguments(s section, t Tool) {
	var in struct {
		Properties map[string]any `json:"properties"`
		Required   []string       `json:"required"`
	}
	if t.InputSchema == "" || json.Unmarshal([]byte(t.InputSchema), &in) != nil {
		return
	}
	for _, m := range placeholder.FindAllStringSubmatch(t.HTTP.Path, -1) {
		if !slices.Contains(in.Required, m[1]) || in.Properties[m[1]] == nil {
			r.refuse(s.rangeOf("path"), "{%s} is not a required property of input", m[1])
		}
	}
	for _, name := range t.HTTP.Body {
		if in.Properties[name] == nil {
			r.refuse(s.rangeOf("body"), "%q is not a property of input", name)
		}
	}
}

// recovery refuses a promise that the request cannot keep.
func (r *reader) recovery(s section, t Tool) {
	m := t.HTTP.Method
	if t.Recovery == runtimev1.Recovery_RECOVERY_IDEMPOTENT && (m == "POST" || m == "PATCH") && t.HTTP.IdempotencyHeader == "" {
		r.refuse(s.rangeOf("recovery"), "a %s request is idempotent only with an idempotency_header", m)
	}
	if m == "DELETE" && t.Effect != 0 && t.Effect != runtimev1.Effect_EFFECT_DESTRUCTIVE {
		r.refuse(s.rangeOf("effect"), "a DELETE request is destructive: its effect is R4")
	}
}

// lookup reads how an inspectable tool is asked about; every one has it, and no
// other has.
func (r *reader) lookup(s section, blocks hcl.Blocks, t *Tool) {
	inspectable := t.Recovery == runtimev1.Recovery_RECOVERY_INSPECTABLE
	switch {
	case inspectable && len(blocks) != 1:
		r.refuse(s.rangeOf("recovery"), "an inspectable http tool needs one lookup block, with the path that shows whether a call happened")
		return
	case !inspectable && len(blocks) > 0:
		r.refuse(blocks[0].DefRange, "lookup is for recovery = \"inspectable\"")
		return
	case !inspectable:
		return
	}
	l := r.section(r.content(blocks[0].Body, []string{"path", "contains"}), blocks[0].DefRange)
	t.HTTP.Lookup = &Lookup{}
	l.text("path", &t.HTTP.Lookup.Path)
	l.text("contains", &t.HTTP.Lookup.Contains)
	if p := t.HTTP.Lookup.Path; !pathForm.MatchString(p) || strings.HasPrefix(p, "//") || strings.Contains(p, "/..") {
		r.refuse(l.rangeOf("path"), "path must begin with one / and stay below the destination; {name} stands for an argument, {%s} for the call's key", KeyPlaceholder)
	}
	required := requiredOf(*t)
	for _, m := range placeholder.FindAllStringSubmatch(t.HTTP.Lookup.Path+" "+t.HTTP.Lookup.Contains, -1) {
		if m[1] != KeyPlaceholder && !slices.Contains(required, m[1]) {
			r.refuse(l.at, "{%s} is not a required property of input", m[1])
		}
	}
}

// requiredOf are the arguments that always exist.
func requiredOf(t Tool) []string {
	var in struct {
		Required []string `json:"required"`
	}
	if json.Unmarshal([]byte(t.InputSchema), &in) != nil {
		return nil
	}
	return in.Required
}

// schema reads a JSON Schema as an HCL object or as JSON text, and returns it in
// canonical form.
func (r *reader) schema(s section, name string, required bool) string {
	a, ok := s.attrs[name]
	if !ok {
		if required {
			r.refuse(s.at, "%s is missing: it is the JSON Schema of the tool's arguments", name)
		}
		return ""
	}
	v, diags := a.Expr.Value(nil)
	if diags.HasErrors() {
		r.diagnose(diags)
		return ""
	}
	src, err := jsonOf(v)
	if err == nil {
		src, err = canonical.Canonical(src)
	}
	if err == nil {
		_, err = schema.Compile(string(src))
	}
	if err == nil && required && !isObject(src) {
		r.refuse(a.Expr.Range(), "%s must describe an object: type = \"object\"", name)
		return ""
	}
	if err != nil {
		r.refuse(a.Expr.Range(), "%s is no JSON Schema: %s", name, err)
		return ""
	}
	return string(src)
}

func jsonOf(v cty.Value) ([]byte, error) {
	if v.Type() == cty.String && !v.IsNull() {
		return []byte(v.AsString()), nil
	}
	return ctyjson.SimpleJSONValue{Value: v}.MarshalJSON()
}

func isObject(src []byte) bool {
	var s struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(src, &s) == nil && s.Type == "object"
}
