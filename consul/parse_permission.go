package consul

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"golang.org/x/net/http/httpguts"
)

// methods that HTTP knows.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	http.MethodConnect, http.MethodOptions, http.MethodTrace}

func (p *parser) list(expr hcl.Expression, form string) []hcl.Expression {
	list, diags := hcl.ExprList(expr)
	if diags.HasErrors() {
		p.problem(expr.Range().Ptr(), "", form)
	}
	return list
}

func (p *parser) permissions(expr hcl.Expression) (out []Permission) {
	for _, item := range p.list(expr, `Permissions must be a list such as [{ Action = "allow", HTTP = { PathPrefix = "/v1" } }]`) {
		out = append(out, p.permission(item))
	}
	if len(out) == 0 {
		p.problem(expr.Range().Ptr(), "", "Permissions is empty: name one, or give the source an Action")
	}
	return out
}

func (p *parser) permission(expr hcl.Expression) Permission {
	before := len(p.problems)
	out := Permission{At: place(expr.Range())}
	var action, about bool
	p.fields(expr, `a permission is written { Action = "allow", HTTP = { … } }`, func(key string, kv hcl.KeyValuePair) {
		switch key {
		case "Action":
			action = true
			out.Allow = p.action(kv.Value)
		case "HTTP":
			about = true
			out.HTTP = p.http(kv.Value)
		case "JWT":
			p.problem(kv.Key.Range().Ptr(), "", "JWT requirements are not enforced here and are refused: remove them")
		default:
			p.problem(kv.Key.Range().Ptr(), "", fmt.Sprintf("unknown field %s: a permission has Action and HTTP", key))
		}
	})
	if (!action || !about) && len(p.problems) == before {
		p.problem(expr.Range().Ptr(), "", "a permission needs Action and HTTP")
	}
	return out
}

func (p *parser) http(expr hcl.Expression) (out HTTP) {
	before, parts, paths := len(p.problems), 0, 0
	path := func(kv hcl.KeyValuePair, key string) string {
		s := p.text(kv.Value, key)
		if s != "" && !strings.HasPrefix(s, "/") {
			p.problem(kv.Value.Range().Ptr(), "", fmt.Sprintf("%s %q must begin with /", key, s))
		}
		return s
	}
	p.fields(expr, `HTTP is written { PathPrefix = "/v1", Methods = ["GET"] }`, func(key string, kv hcl.KeyValuePair) {
		parts++
		switch key {
		case "PathExact":
			paths++
			out.PathExact = path(kv, key)
		case "PathPrefix":
			paths++
			out.PathPrefix = path(kv, key)
		case "PathRegex":
			paths++
			out.PathRegex = p.regex(kv.Value, key)
		case "Methods":
			out.Methods = p.methods(kv.Value)
		case "Header":
			for _, item := range p.list(kv.Value, `Header must be a list such as [{ Name = "x-env", Exact = "test" }]`) {
				out.Header = append(out.Header, p.header(item))
			}
		default:
			p.problem(kv.Key.Range().Ptr(), "", fmt.Sprintf("unknown field %s: HTTP has PathExact, PathPrefix, PathRegex, Methods and Header", key))
		}
	})
	switch {
	case len(p.problems) > before:
	case parts == 0 || (out.PathExact == "" && out.PathPrefix == "" && out.PathRegex == nil && len(out.Methods) == 0 && len(out.Header) == 0):
		p.problem(expr.Range().Ptr(), "", `HTTP is empty: PathPrefix = "/" is every request`)
	case paths > 1:
		p.problem(expr.Range().Ptr(), "", "HTTP has at most one of PathExact, PathPrefix and PathRegex")
	}
	return out
}

func (p *parser) methods(expr hcl.Expression) (out []string) {
	for _, item := range p.list(expr, `Methods must be a list such as ["GET", "POST"]`) {
		m := strings.ToUpper(p.text(item, "a method"))
		switch {
		case m == "":
		case !slices.Contains(methods, m):
			p.problem(item.Range().Ptr(), "", fmt.Sprintf("%q is none of %s", m, strings.Join(methods, ", ")))
		case slices.Contains(out, m):
			p.problem(item.Range().Ptr(), "", fmt.Sprintf("%s stands twice", m))
		}
		out = append(out, m)
	}
	return out
}

func (p *parser) header(expr hcl.Expression) (out Header) {
	before, asks := len(p.problems), 0
	text := func(to *string, key string, v hcl.Expression) {
		if *to = p.text(v, key); *to != "" {
			asks++
		}
	}
	p.fields(expr, `a header is written { Name = "x-env", Exact = "test" }`, func(key string, kv hcl.KeyValuePair) {
		switch key {
		case "Name":
			if out.Name = p.text(kv.Value, key); out.Name != "" && !httpguts.ValidHeaderFieldName(out.Name) {
				p.problem(kv.Value.Range().Ptr(), "", fmt.Sprintf("%q is no name of a header", out.Name))
			}
		case "Present":
			if out.Present = p.flag(kv.Value, key); out.Present {
				asks++
			}
		case "Exact":
			text(&out.Exact, key, kv.Value)
		case "Prefix":
			text(&out.Prefix, key, kv.Value)
		case "Suffix":
			text(&out.Suffix, key, kv.Value)
		case "Contains":
			text(&out.Contains, key, kv.Value)
		case "Regex":
			if out.Regex = p.regex(kv.Value, key); out.Regex != nil {
				asks++
			}
		case "Invert":
			out.Invert = p.flag(kv.Value, key)
		case "IgnoreCase":
			out.IgnoreCase = p.flag(kv.Value, key)
		default:
			p.problem(kv.Key.Range().Ptr(), "", fmt.Sprintf("unknown field %s: a header has Name, Present, Exact, Prefix, Suffix, Contains, Regex, Invert and IgnoreCase", key))
		}
	})
	switch {
	case len(p.problems) > before:
	case out.Name == "":
		p.problem(expr.Range().Ptr(), "", "Name of the header is missing")
	case asks != 1:
		p.problem(expr.Range().Ptr(), "", "a header asks for exactly one of Present, Exact, Prefix, Suffix, Contains and Regex")
	case out.IgnoreCase && (out.Present || out.Regex != nil):
		p.problem(expr.Range().Ptr(), "", "IgnoreCase has no meaning for Present and Regex: write (?i) into the expression")
	}
	return out
}

// regex is an expression for the whole of a text.
func (p *parser) regex(expr hcl.Expression, field string) *regexp.Regexp {
	s := p.text(expr, field)
	if s == "" {
		return nil
	}
	re, err := Whole(s)
	if err != nil {
		p.problem(expr.Range().Ptr(), "", fmt.Sprintf("%s %q: %v", field, s, err))
	}
	return re
}

func (p *parser) flag(expr hcl.Expression, field string) bool {
	v, diags := expr.Value(nil)
	if diags.HasErrors() || v.Type() != cty.Bool || v.IsNull() || !v.IsKnown() {
		p.problem(expr.Range().Ptr(), "", field+" must be true or false")
		return false
	}
	return v.True()
}
