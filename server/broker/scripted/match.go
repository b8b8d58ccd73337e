package scripted

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// conversation is what a rule may look at.
type conversation struct {
	model, system, user string
	results             []result // since the last user message, oldest first
	offers              []string
	choices             map[string][]string // by tool.argument: the texts that it may have
}

type result struct{ alias, text string }

func (c conversation) last() result {
	if len(c.results) == 0 {
		return result{}
	}
	return c.results[len(c.results)-1]
}

// describe the conversation for whoever must add a rule.
func (c conversation) describe() string {
	s := fmt.Sprintf("the last user message is %q, %d tool results since", clip(c.user), len(c.results))
	if len(c.results) > 0 {
		s += fmt.Sprintf(", the newest from %q: %q", c.last().alias, clip(c.last().text))
	}
	return s
}

func clip(s string) string {
	if r := []rune(s); len(r) > 120 {
		return string(r[:120]) + "…"
	}
	return s
}

// match finds the first rule and the values its expressions see.
func (s *Script) match(c conversation) (*rule, *hcl.EvalContext) {
	for i := range s.rules {
		if vars, ok := s.rules[i].When.match(c); ok {
			vars["last_user"], vars["last_result"] = cty.StringVal(c.user), cty.StringVal(c.last().text)
			return &s.rules[i], &hcl.EvalContext{Variables: vars, Functions: functions}
		}
	}
	return nil, nil
}

func (w *when) match(c conversation) (map[string]cty.Value, bool) {
	last := c.last()
	hold := []bool{
		strings.Contains(c.user, w.UserContains),
		strings.Contains(c.system, w.SystemContains),
		strings.Contains(last.text, w.ResultContains),
		w.Results == nil || *w.Results == len(c.results),
		w.ResultOf == "" || (len(c.results) > 0 && w.ResultOf == last.alias),
		w.ResultContains == "" || len(c.results) > 0,
		w.Model == "" || w.Model == c.model,
	}
	for _, alias := range w.Offers {
		hold = append(hold, slices.Contains(c.offers, alias))
	}
	if slices.Contains(hold, false) {
		return nil, false
	}
	vars := map[string]cty.Value{}
	if !capture(vars, "user", w.user, c.user) || !w.chosen(vars, c) {
		return nil, false
	}
	if w.result != nil && (len(c.results) == 0 || !capture(vars, "result", w.result, last.text)) {
		return nil, false
	}
	if w.any == nil {
		return vars, true
	}
	for _, r := range slices.Backward(c.results) {
		if capture(vars, "any", w.any, r.text) {
			return vars, true
		}
	}
	return nil, false
}

// capture puts the named groups of a match into vars. No expression matches
// everything.
func capture(vars map[string]cty.Value, name string, re *regexp.Regexp, text string) bool {
	if re == nil {
		return true
	}
	m := re.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	groups := map[string]cty.Value{}
	for i, g := range re.SubexpNames() {
		if g != "" {
			groups[g] = cty.StringVal(m[i])
		}
	}
	vars[name] = cty.ObjectVal(groups)
	return true
}

var functions = map[string]function.Function{
	"upper": stdlib.UpperFunc, "lower": stdlib.LowerFunc, "trimspace": stdlib.TrimSpaceFunc, "replace": stdlib.ReplaceFunc,
	"split": stdlib.SplitFunc, "join": stdlib.JoinFunc, "jsonencode": stdlib.JSONEncodeFunc, "jsondecode": stdlib.JSONDecodeFunc,
}

// answer is a rule filled in.
type answer struct {
	text  string
	calls []answerCall
}

type answerCall struct{ alias, arguments string }

func (r *rule) answer(ctx *hcl.EvalContext) (answer, error) {
	var a answer
	var err error
	if !isUnset(r.Text) {
		if a.text, err = evalText(r.Text, ctx); err != nil {
			return a, err
		}
	}
	for _, c := range r.Calls {
		filled := answerCall{alias: c.Alias}
		if isUnset(c.Args) {
			filled.arguments, err = evalText(c.Raw, ctx)
		} else {
			filled.arguments, err = evalJSON(c.Args, ctx)
		}
		if err != nil {
			return a, err
		}
		a.calls = append(a.calls, filled)
	}
	return a, nil
}

func evalText(x hcl.Expression, ctx *hcl.EvalContext) (string, error) {
	v, diags := x.Value(ctx)
	if diags.HasErrors() {
		return "", diags
	}
	if v.Type() != cty.String || v.IsNull() {
		return "", fmt.Errorf("%s: the value must be a text", place(x.Range().Ptr()))
	}
	return v.AsString(), nil
}

func evalJSON(x hcl.Expression, ctx *hcl.EvalContext) (string, error) {
	v, diags := x.Value(ctx)
	if diags.HasErrors() {
		return "", diags
	}
	b, err := ctyjson.Marshal(v, v.Type())
	return string(b), err
}
