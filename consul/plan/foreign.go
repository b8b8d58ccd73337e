package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"
)

// rule of a policy: what it is about, and not what it gives there.
type rule struct {
	kind string // service, node_prefix, operator, …
	name string // empty: the kind has none, or all are meant
}

func (r rule) String() string {
	if r.name == "" {
		return r.kind
	}
	return fmt.Sprintf("%s %q", r.kind, r.name)
}

// foreign are the rules that a policy has and the wanted one has not. Two brokers that
// share a name would take turns in writing over each other's policy: what is about more
// than this one asks is not written over, since nobody can tell whose it is. A policy that
// cannot be read to its last field is all foreign: Consul reads more forms than this does.
func foreign(have, want string) (more []string) {
	wanted, err := rules(want)
	if err != nil {
		return []string{err.Error()}
	}
	there, err := rules(have)
	if err != nil {
		return []string{err.Error()}
	}
	for _, r := range there {
		if !slices.Contains(wanted, r) && !slices.Contains(more, r.String()) {
			more = append(more, r.String())
		}
	}
	return more
}

// rules of a policy's text, in HCL or JSON.
func rules(text string) ([]rule, error) {
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		return rulesOfJSON(text)
	}
	f, wrong := hclsyntax.ParseConfig([]byte(text), "rules", hcl.InitialPos)
	if wrong.HasErrors() {
		return nil, unread(wrong)
	}
	var all []rule
	body := f.Body.(*hclsyntax.Body)
	for kind := range body.Attributes {
		all = append(all, rule{kind: kind})
	}
	for _, b := range body.Blocks {
		if len(b.Labels) != 1 || len(b.Body.Blocks) > 0 {
			return nil, fmt.Errorf("a %s block that is not understood here (line %d)", b.Type, b.TypeRange.Start.Line)
		}
		all = append(all, rule{b.Type, b.Labels[0]})
	}
	slices.SortFunc(all, func(a, b rule) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

// rulesOfJSON reads {"KIND": {"NAME": {…}}} and {"KIND": "POLICY"}.
func rulesOfJSON(text string) (all []rule, err error) {
	f, wrong := json.Parse([]byte(text), "rules")
	if wrong.HasErrors() {
		return nil, unread(wrong)
	}
	kinds, wrong := f.Body.JustAttributes()
	if wrong.HasErrors() {
		return nil, unread(wrong)
	}
	for kind, a := range kinds {
		v, wrong := a.Expr.Value(nil)
		switch {
		case wrong.HasErrors():
			return nil, unread(wrong)
		case v.Type() == cty.String:
			all = append(all, rule{kind: kind})
			continue
		case !v.Type().IsObjectType():
			return nil, fmt.Errorf("a %s that is not understood here", kind)
		}
		for name, in := range v.AsValueMap() {
			if !in.Type().IsObjectType() || !flat(in.Type()) {
				return nil, fmt.Errorf("a %s %q that is not understood here", kind, name)
			}
			all = append(all, rule{kind, name})
		}
	}
	slices.SortFunc(all, func(a, b rule) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

// flat is an object whose fields are all texts.
func flat(t cty.Type) bool {
	for _, f := range t.AttributeTypes() {
		if f != cty.String {
			return false
		}
	}
	return true
}

// unread is the first thing that is wrong with a text.
func unread(wrong hcl.Diagnostics) error {
	d := wrong[0]
	line := 0
	if d.Subject != nil {
		line = d.Subject.Start.Line
	}
	return fmt.Errorf("what cannot be read here (line %d: %s)", line, strings.ToLower(strings.TrimSuffix(d.Summary, ".")))
}

// Refusal says why something that stands in the way is not changed, and who mends it.
func (x Difference) Refusal() string {
	if x.Kind != Policy {
		return fmt.Sprintf("%s is there, says %q, and is not changed: somebody decided so. %s", x.Title(), x.Have, wayOut[x.Kind])
	}
	return fmt.Sprintf("%s is there, is about %s too, which this broker.hcl does not name, and is not changed: it may be another broker's. For a second broker: bivouac consul setup --name NAME. "+
		"Where it is this one's, and is to give less: consul acl policy update -name %s -rules @FILE, with the rules that bivouac consul setup --print shows",
		x.Title(), strings.Join(foreign(x.Have, x.Want), ", "), x.Name)
}
