package consul

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"

	"bivouac/edge/protocol"
)

// Kind of the only entries that are understood.
const Kind = "service-intentions"

// MaxBytes of one entry, and how deep its brackets may stand in each other: the
// HCL parser's stack is not endless.
const (
	MaxBytes = 1 << 20
	maxDepth = 100
)

// ParseError says that an entry allows nothing, and why.
type ParseError struct {
	// Destination, when it could be read: it is the one to deny.
	Destination string
	Err         error
}

func (e *ParseError) Error() string { return e.Err.Error() }
func (e *ParseError) Unwrap() error { return e.Err }

// Parse reads one entry. All problems are named, each with file and line; the
// error is a *ParseError.
func Parse(src []byte, filename string) (Intention, error) {
	if len(src) > MaxBytes {
		return Intention{}, &ParseError{Err: invalid(fmt.Errorf("%s: larger than %d bytes", filename, MaxBytes))}
	}
	if tooDeep(src) {
		return Intention{}, &ParseError{Err: invalid(fmt.Errorf("%s: brackets stand deeper than %d in each other", filename, maxDepth))}
	}
	p := parser{}
	in := p.entry(p.attributes(src, filename), filename)
	if len(p.problems) > 0 {
		return Intention{}, &ParseError{Destination: in.Destination, Err: invalid(p.problems...)}
	}
	return in, nil
}

// tooDeep counts brackets wherever they stand: a text full of them is refused too.
func tooDeep(src []byte) bool {
	depth := 0
	for _, c := range src {
		switch c {
		case '[', '{', '(':
			depth++
		case ']', '}', ')':
			depth = max(0, depth-1)
		}
		if depth > maxDepth {
			return true
		}
	}
	return false
}

func invalid(problems ...error) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "%w", errors.Join(problems...))
}

type parser struct{ problems []error }

func (p *parser) problem(at *hcl.Range, filename, text string) {
	where := filename
	if at != nil {
		where = place(*at)
	}
	p.problems = append(p.problems, fmt.Errorf("%s: %s", where, text))
}

func place(r hcl.Range) string { return fmt.Sprintf("%s:%d", r.Filename, r.Start.Line) }

// attributes of an entry in HCL, or in JSON when the file's name says so. What can
// be read of a broken file is read: the destination is to be denied.
func (p *parser) attributes(src []byte, filename string) map[string]*hcl.Attribute {
	out := map[string]*hcl.Attribute{}
	if filepath.Ext(filename) == ".json" {
		file, diags := json.Parse(src, filename)
		if file != nil {
			attributes, more := file.Body.JustAttributes()
			out, diags = attributes, append(diags, more...)
		}
		p.diagnose(diags, filename)
		return out
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	p.diagnose(diags, filename)
	if file == nil {
		return out
	}
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok {
		return out
	}
	for _, b := range body.Blocks {
		p.problem(b.TypeRange.Ptr(), filename, fmt.Sprintf("%s is written as a list: %s = [ … ]", b.Type, b.Type))
	}
	for name, a := range body.Attributes {
		out[name] = a.AsHCLAttribute()
	}
	return out
}

func (p *parser) diagnose(diags hcl.Diagnostics, filename string) {
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			p.problem(d.Subject, filename, d.Summary+": "+d.Detail)
		}
	}
}

func (p *parser) entry(attributes map[string]*hcl.Attribute, filename string) Intention {
	in := Intention{At: filename + ":1"}
	for name, a := range attributes {
		switch name {
		case "Kind":
			if s := p.text(a.Expr, name); s != Kind && s != "" {
				p.problem(a.Expr.Range().Ptr(), filename, fmt.Sprintf("Kind is %q: only %q has a meaning here", s, Kind))
			}
		case "Name":
			in.Destination, in.At = p.name(a.Expr), place(a.NameRange)
		case "Sources":
			in.Sources = p.sources(a.Expr)
		case "Meta": // remarks of operators
		case "JWT":
			p.problem(a.NameRange.Ptr(), filename, "JWT requirements are not enforced here and are refused: remove them")
		default:
			p.problem(a.NameRange.Ptr(), filename, fmt.Sprintf("unknown field %s: an entry has Kind, Name, Sources and Meta", name))
		}
	}
	for _, need := range []string{"Kind", "Name", "Sources"} {
		if attributes[need] == nil {
			p.problem(nil, filename, need+" is missing")
		}
	}
	if in.Destination == Wildcard {
		for _, s := range in.Sources {
			if len(s.Permissions) > 0 {
				p.problem(nil, s.At, "Permissions need an exact destination, as in Consul: the destination here is *")
			}
		}
	}
	return in
}

// text evaluates a constant string.
func (p *parser) text(expr hcl.Expression, field string) string {
	v, diags := expr.Value(nil)
	if diags.HasErrors() || v.Type() != cty.String || v.IsNull() || !v.IsKnown() {
		p.problem(expr.Range().Ptr(), "", field+" must be a text in quotes")
		return ""
	}
	return v.AsString()
}

func (p *parser) name(expr hcl.Expression) string {
	s := p.text(expr, "Name")
	if s == "" {
		return ""
	}
	if err := CheckName(s); err != nil {
		p.problem(expr.Range().Ptr(), "", err.Error())
	}
	return s
}

func (p *parser) sources(expr hcl.Expression) []Source {
	list, diags := hcl.ExprList(expr)
	if diags.HasErrors() {
		p.problem(expr.Range().Ptr(), "", `Sources must be a list such as [{ Name = "agent-assistant", Action = "allow" }]`)
		return nil
	}
	var out []Source
	seen := map[string]string{}
	for _, item := range list {
		s, ok := p.source(item)
		if !ok {
			continue
		}
		if first, twice := seen[s.Name]; twice {
			p.problem(item.Range().Ptr(), "", fmt.Sprintf("source %q stands here and at %s: one intention governs a pair", s.Name, first))
			continue
		}
		seen[s.Name] = s.At
		out = append(out, s)
	}
	return out
}

func (p *parser) source(expr hcl.Expression) (Source, bool) {
	before := len(p.problems)
	s := Source{At: place(expr.Range())}
	var action, permissions bool
	p.fields(expr, `a source is written { Name = "…", Action = "allow" }`, func(key string, kv hcl.KeyValuePair) {
		switch key {
		case "Name":
			s.Name = p.name(kv.Value)
		case "Action":
			action = true
			s.Allow = p.action(kv.Value)
		case "Permissions":
			permissions = true
			s.Permissions = p.permissions(kv.Value)
		case "Type":
			if t := p.text(kv.Value, key); t != "" && t != "consul" {
				p.problem(kv.Value.Range().Ptr(), "", fmt.Sprintf("Type is %q: only \"consul\" has a meaning", t))
			}
		case "Description":
			p.text(kv.Value, key)
		default:
			p.problem(kv.Key.Range().Ptr(), "", fmt.Sprintf("unknown field %s: a source has Name, Action, Permissions, Type and Description", key))
		}
	})
	ok := func() bool { return len(p.problems) == before }
	switch {
	case s.Name == "" && ok():
		p.problem(expr.Range().Ptr(), "", "Name of the source is missing")
	case action && permissions && ok():
		p.problem(expr.Range().Ptr(), "", "Action and Permissions exclude each other, as in Consul: the permissions have actions of their own")
	case !action && !permissions && ok():
		p.problem(expr.Range().Ptr(), "", "Action of the source is missing")
	}
	return s, ok()
}

// fields calls take for each field of an object, and names one that stands twice.
func (p *parser) fields(expr hcl.Expression, form string, take func(key string, kv hcl.KeyValuePair)) {
	pairs, diags := hcl.ExprMap(expr)
	if diags.HasErrors() {
		p.problem(expr.Range().Ptr(), "", form)
		return
	}
	seen := map[string]bool{}
	for _, kv := range pairs {
		key := hcl.ExprAsKeyword(kv.Key)
		if key == "" {
			key = p.text(kv.Key, "the field's name")
		}
		if seen[key] {
			p.problem(kv.Key.Range().Ptr(), "", fmt.Sprintf("%s stands twice", key))
		}
		seen[key] = true
		take(key, kv)
	}
}

func (p *parser) action(expr hcl.Expression) bool {
	switch p.text(expr, "Action") {
	case "allow":
		return true
	case "deny", "":
		return false
	}
	p.problem(expr.Range().Ptr(), "", `Action must be "allow" or "deny"`)
	return false
}
