package policy

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bivouac/edge/protocol"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// reader walks one HCL file and keeps every problem with its place, so that a
// person mends them all at once.
type reader struct {
	problems []problem
}

// maxProblems are told at once; more would only be noise.
const maxProblems = 50

type problem struct {
	at     hcl.Range
	reason string
}

func (r *reader) refuse(at hcl.Range, format string, args ...any) {
	r.problems = append(r.problems, problem{at, fmt.Sprintf(format, args...)})
}

func (r *reader) diagnose(diags hcl.Diagnostics) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		var at hcl.Range
		if d.Subject != nil {
			at = *d.Subject
		}
		r.refuse(at, "%s; %s", d.Summary, strings.ReplaceAll(d.Detail, "\n", " "))
	}
}

// err is nil, or an invalid_argument with one line a problem: file:line:column
// and reason.
func (r *reader) err(what string) error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.at.Start.Line, b.at.Start.Line), cmp.Compare(a.at.Start.Column, b.at.Start.Column))
	})
	lines := make([]string, len(r.problems))
	for i, p := range r.problems {
		lines[i] = fmt.Sprintf("%s:%d:%d: %s", p.at.Filename, p.at.Start.Line, p.at.Start.Column, p.reason)
	}
	lines = slices.Compact(lines)
	if more := len(lines) - maxProblems; more > 0 {
		lines = append(lines[:maxProblems], fmt.Sprintf("and %d more", more))
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "%s is refused:\n%s", what, strings.Join(lines, "\n"))
}

// content reads a body against the attributes and blocks that it may have.
func (r *reader) content(body hcl.Body, attributes []string, blocks ...hcl.BlockHeaderSchema) *hcl.BodyContent {
	s := &hcl.BodySchema{Blocks: blocks}
	for _, a := range attributes {
		s.Attributes = append(s.Attributes, hcl.AttributeSchema{Name: a})
	}
	c, diags := body.Content(s)
	r.diagnose(diags)
	return c
}

// section is one body with its attributes.
type section struct {
	*reader
	attrs hcl.Attributes
	at    hcl.Range
}

func (r *reader) section(c *hcl.BodyContent, at hcl.Range) section {
	return section{r, c.Attributes, at}
}

// rangeOf an attribute, or of its section when it is absent.
func (s section) rangeOf(name string) hcl.Range {
	if a, ok := s.attrs[name]; ok {
		return a.Expr.Range()
	}
	return s.at
}

func (s section) has(name string) bool { return s.attrs[name] != nil }

// value evaluates an attribute to a type; ok is false when it is absent or wrong.
func (s section) value(name string, ty cty.Type, want string) (v cty.Value, ok bool) {
	a, present := s.attrs[name]
	if !present {
		return cty.NilVal, false
	}
	v, diags := a.Expr.Value(nil)
	if diags.HasErrors() {
		s.diagnose(diags)
		return cty.NilVal, false
	}
	v, err := convert.Convert(v, ty)
	if err != nil || v.IsNull() || !v.IsWhollyKnown() {
		s.refuse(a.Expr.Range(), "%s must be %s", name, want)
		return cty.NilVal, false
	}
	return v, true
}

func (s section) text(name string, dst *string) {
	if v, ok := s.value(name, cty.String, "a string"); ok {
		*dst = v.AsString()
	}
}

// choice is text out of a list.
func (s section) choice(name string, dst *string, of ...string) {
	before := *dst
	s.text(name, dst)
	if *dst != before && !slices.Contains(of, *dst) {
		s.refuse(s.rangeOf(name), "%s is %q: it must be one of %s", name, *dst, strings.Join(of, ", "))
		*dst = before
	}
}

func (s section) texts(name string, dst *[]string) {
	v, ok := s.value(name, cty.List(cty.String), "a list of strings")
	if !ok {
		return
	}
	*dst = nil
	for _, e := range v.AsValueSlice() {
		if e.IsNull() {
			s.refuse(s.rangeOf(name), "%s holds a null", name)
			return
		}
		*dst = append(*dst, e.AsString())
	}
}

// number reads an integer above zero and at most ceiling.
func (s section) number(name string, dst *int64, ceiling int64) {
	v, ok := s.value(name, cty.Number, "a number")
	if !ok {
		return
	}
	n, acc := v.AsBigFloat().Int64()
	if acc != 0 || n <= 0 {
		s.refuse(s.rangeOf(name), "%s must be a whole number above zero", name)
		return
	}
	s.bound(name, dst, n, ceiling, strconv.FormatInt(ceiling, 10))
}

func (s section) number32(name string, dst *int32, ceiling int32) {
	n := int64(*dst)
	s.number(name, &n, int64(ceiling))
	*dst = int32(n)
}

// dollars reads an amount into millionths.
func (s section) dollars(name string, dst *int64, ceiling int64) {
	v, ok := s.value(name, cty.Number, "an amount in US dollars, such as 0.5")
	if !ok {
		return
	}
	f, _ := v.AsBigFloat().Float64()
	micro := math.Round(f * 1e6)
	if micro < 1 || micro > math.MaxInt32*1e6 {
		s.refuse(s.rangeOf(name), "%s must be above zero", name)
		return
	}
	s.bound(name, dst, int64(micro), ceiling, fmt.Sprintf("%g", float64(ceiling)/1e6))
}

func (s section) duration(name string, dst *time.Duration, floor, ceiling time.Duration) {
	var text string
	if s.text(name, &text); text == "" {
		return
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < floor || d <= 0 {
		s.refuse(s.rangeOf(name), "%s is %q: it must be a duration of at least %s, such as \"90s\" or \"10m\"", name, text, floor)
		return
	}
	n := int64(*dst)
	s.bound(name, &n, int64(d), int64(ceiling), ceiling.String())
	*dst = time.Duration(n)
}

// size reads bytes: a number, or text such as "512MiB".
func (s section) size(name string, dst *int64, ceiling int64) {
	var text string
	if s.text(name, &text); text == "" {
		return
	}
	n, err := ParseSize(text)
	if err != nil {
		s.refuse(s.rangeOf(name), "%s: %s", name, err)
		return
	}
	s.bound(name, dst, n, ceiling, strconv.FormatInt(ceiling, 10)+" bytes")
}

// bound refuses what the profile does not allow: a definition narrows its
// profile and never widens it. INV-10.
func (s section) bound(name string, dst *int64, n, ceiling int64, shown string) {
	if n > ceiling {
		s.refuse(s.rangeOf(name), "%s is above what the profile allows: at most %s", name, shown)
		return
	}
	*dst = n
}

// ParseSize reads bytes such as "1048576", "64KiB", "512MiB" or "2GiB".
func ParseSize(text string) (int64, error) {
	unit := int64(1)
	digits := text
	for suffix, n := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			unit, digits = n, rest
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/unit {
		return 0, protocol.Errorf(protocol.CodeInvalidArgument, "%q is no size: write bytes, or a number with KiB, MiB or GiB", text)
	}
	return n * unit, nil
}
