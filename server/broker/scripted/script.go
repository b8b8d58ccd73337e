package scripted

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac/edge/protocol"
)

// Script is a checked list of rules.
type Script struct {
	Name  string
	rules []rule
}

type file struct {
	Rules []rule `hcl:"rule,block"`
}

type rule struct {
	Name       string         `hcl:"name,label"`
	When       *when          `hcl:"when,block"`
	Text       hcl.Expression `hcl:"text,optional"`
	Calls      []call         `hcl:"call,block"`
	Length     bool           `hcl:"length,optional"`
	Delay      string         `hcl:"delay,optional"`
	ChunkDelay string         `hcl:"chunk_delay,optional"`
	ChunkRunes int            `hcl:"chunk_runes,optional"`
	Usage      *usage         `hcl:"usage,block"`
	Error      *failure       `hcl:"error,block"`
	Garbage    bool           `hcl:"garbage,optional"`
	CutAfter   *int           `hcl:"cut_after,optional"`
	EndAfter   *int           `hcl:"end_after,optional"`
	StallAfter *int           `hcl:"stall_after,optional"`
	Range      hcl.Range      `hcl:",def_range"`

	delay, chunkDelay time.Duration
}

type when struct {
	UserContains     string   `hcl:"user_contains,optional"`
	UserMatches      string   `hcl:"user_matches,optional"`
	SystemContains   string   `hcl:"system_contains,optional"`
	Results          *int     `hcl:"results,optional"`
	ResultOf         string   `hcl:"result_of,optional"`
	ResultContains   string   `hcl:"result_contains,optional"`
	ResultMatches    string   `hcl:"result_matches,optional"`
	AnyResultMatches string   `hcl:"any_result_matches,optional"`
	Offers           []string `hcl:"offers,optional"`
	Choice           string   `hcl:"choice,optional"`
	Model            string   `hcl:"model,optional"`

	user, result, any *regexp.Regexp
}

type call struct {
	Alias string         `hcl:"alias,label"`
	Args  hcl.Expression `hcl:"arguments,optional"`
	Raw   hcl.Expression `hcl:"raw_arguments,optional"`
	Range hcl.Range      `hcl:",def_range"`
}

type usage struct {
	Input  int64 `hcl:"input"`
	Output int64 `hcl:"output"`
	// Parts of Input. Chat Completions and Responses tell of reads alone.
	CacheRead  int64 `hcl:"cache_read,optional"`
	CacheWrite int64 `hcl:"cache_write,optional"`
}

type failure struct {
	Status     int    `hcl:"status"`
	Message    string `hcl:"message,optional"`
	Code       string `hcl:"code,optional"`
	RetryAfter string `hcl:"retry_after,optional"`

	retryAfter time.Duration
}

// Load reads a script file.
func Load(path string) (*Script, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the model script cannot be read: %w", err)
	}
	return Parse(src, path)
}

// Parse checks a whole script and names every problem with file and line.
func Parse(src []byte, filename string) (*Script, error) {
	parsed, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	var f file
	if !diags.HasErrors() {
		diags = append(diags, gohcl.DecodeBody(parsed.Body, nil, &f)...)
	}
	var problems []error
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			problems = append(problems, fmt.Errorf("%s: %s: %s", place(d.Subject), d.Summary, d.Detail))
		}
	}
	if len(problems) == 0 && len(f.Rules) == 0 {
		problems = append(problems, fmt.Errorf("%s: the script has no rule", filename))
	}
	for i := range f.Rules {
		problems = append(problems, f.Rules[i].check()...)
	}
	if len(problems) > 0 {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the model script is refused:\n%w", errors.Join(problems...))
	}
	return &Script{Name: filename, rules: f.Rules}, nil
}

func place(r *hcl.Range) string {
	if r == nil {
		return "script"
	}
	return fmt.Sprintf("%s:%d", r.Filename, r.Start.Line)
}

func (r *rule) check() (problems []error) {
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: rule %q: %s", place(&r.Range), r.Name, fmt.Sprintf(format, args...)))
	}
	duration := func(name, text string) (d time.Duration) {
		if text == "" {
			return 0
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			bad("%s = %q is no duration such as \"50ms\"", name, text)
		}
		return d
	}
	r.delay, r.chunkDelay = duration("delay", r.Delay), duration("chunk_delay", r.ChunkDelay)
	if r.ChunkRunes == 0 {
		r.ChunkRunes = 12
	}
	for _, why := range r.numbers() {
		bad("%s", why)
	}
	if r.When == nil {
		r.When = &when{}
	}
	for _, e := range r.When.compile() {
		bad("%s", e)
	}
	if e := r.Error; e != nil {
		e.retryAfter = duration("retry_after", e.RetryAfter)
		if e.Status < 400 || e.Status > 599 {
			bad("error status %d is none between 400 and 599", e.Status)
		}
	}
	if r.Error == nil && !r.Garbage && isUnset(r.Text) && len(r.Calls) == 0 {
		bad("it answers nothing: give text, call, error or garbage")
	}
	for _, x := range r.expressions() {
		for _, t := range x.Variables() {
			if why := r.When.knows(t); why != "" {
				problems = append(problems, fmt.Errorf("%s: rule %q: %s", place(t.SourceRange().Ptr()), r.Name, why))
			}
		}
	}
	for _, c := range r.Calls {
		if isUnset(c.Args) == isUnset(c.Raw) {
			problems = append(problems, fmt.Errorf("%s: call %q: give either arguments or raw_arguments", place(&c.Range), c.Alias))
		}
	}
	return problems
}

// numbers that cannot be.
func (r *rule) numbers() (problems []string) {
	for _, n := range []*int{&r.ChunkRunes, r.CutAfter, r.EndAfter, r.StallAfter} {
		if n != nil && *n < 0 {
			problems = append(problems, "chunk_runes, cut_after, end_after and stall_after must be positive")
		}
	}
	if u := r.Usage; u != nil && u.CacheRead+u.CacheWrite > u.Input {
		problems = append(problems, "usage: cache_read and cache_write are parts of input")
	}
	return problems
}

func (r *rule) expressions() (out []hcl.Expression) {
	all := []hcl.Expression{r.Text}
	for _, c := range r.Calls {
		all = append(all, c.Args, c.Raw)
	}
	for _, x := range all {
		if !isUnset(x) {
			out = append(out, x)
		}
	}
	return out
}

// isUnset recognises what gohcl puts where an optional expression is absent: a
// synthetic null.
func isUnset(x hcl.Expression) bool {
	if x == nil {
		return true
	}
	v, diags := x.Value(nil)
	return !diags.HasErrors() && v.IsNull()
}

func (w *when) compile() (problems []error) {
	regex := func(name, text string) *regexp.Regexp {
		if text == "" {
			return nil
		}
		re, err := regexp.Compile(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
		return re
	}
	w.user = regex("user_matches", w.UserMatches)
	w.result = regex("result_matches", w.ResultMatches)
	w.any = regex("any_result_matches", w.AnyResultMatches)
	if err := w.checkChoice(); err != nil {
		problems = append(problems, err)
	}
	return problems
}

// knows says why an expression may not use a variable; empty when it may.
func (w *when) knows(t hcl.Traversal) string {
	root := t.RootName()
	groups := map[string]*regexp.Regexp{"user": w.user, "result": w.result, "any": w.any}
	if re, isGroup := groups[root]; isGroup {
		if len(t) > 1 {
			if a, ok := t[1].(hcl.TraverseAttr); ok && re != nil && slices.Contains(re.SubexpNames(), a.Name) {
				return ""
			}
		}
		return fmt.Sprintf("%s must be a named group, such as (?P<name>…), of the rule's %s", strings.TrimSpace(traversalText(t)), matcherOf(root))
	}
	if root == "choices" && w.Choice != "" {
		return ""
	}
	if root == "last_user" || root == "last_result" {
		return ""
	}
	return fmt.Sprintf("there is no variable %q: use user, result, any, last_user, last_result or, with choice, choices", root)
}

func matcherOf(root string) string {
	return map[string]string{"user": "user_matches", "result": "result_matches", "any": "any_result_matches"}[root]
}

func traversalText(t hcl.Traversal) string {
	out := t.RootName()
	for _, step := range t[1:] {
		if a, ok := step.(hcl.TraverseAttr); ok {
			out += "." + a.Name
		}
	}
	return out
}
