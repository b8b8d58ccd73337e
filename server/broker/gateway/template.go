package gateway

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"bivouac/edge/protocol"
)

// args are the arguments by name, and which of them were used.
type args struct {
	values map[string]json.RawMessage
	used   map[string]bool
}

func parseArgs(canonical []byte) (*args, error) {
	a := &args{used: map[string]bool{}}
	if err := json.Unmarshal(canonical, &a.values); err != nil || a.values == nil {
		return nil, invalid("the arguments must be a JSON object")
	}
	return a, nil
}

func invalid(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidArgument, "the http tool cannot be sent: "+format, args...)
}

// scalar is an argument as text; absent and null are the same.
func (a *args) scalar(name string) (text string, there bool, err error) {
	raw, ok := a.values[name]
	a.used[name] = true
	if !ok || string(raw) == "null" {
		return "", false, nil
	}
	switch raw[0] {
	case '"':
		err = json.Unmarshal(raw, &text)
		return text, true, err
	case '{', '[':
		return "", true, invalid("argument %q is no plain value and cannot stand in a path or query", name)
	}
	return string(raw), true, nil
}

// leftover names an argument that the request would silently drop.
func (a *args) leftover() error {
	for name := range a.values {
		if !a.used[name] {
			return invalid("argument %q is used by neither path, query nor body of the tool", name)
		}
	}
	return nil
}

var placeholder = regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// literal characters of a template: what RFC 3986 allows in a path or query.
var literalForm = regexp.MustCompile(`^(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*$`)

// forbiddenEscape hides separators or dots from the check of segments.
var forbiddenEscape = regexp.MustCompile(`(?i)%(2e|2f|5c|00)`)

// CheckTemplate refuses a path that could leave its destination.
func CheckTemplate(path string) error {
	literal := placeholder.ReplaceAllString(path, "x")
	switch {
	case !strings.HasPrefix(path, "/"):
		return invalid("the path %q must begin with /", path)
	case strings.ContainsAny(literal, "{}"):
		return invalid("the path %q has a brace that belongs to no {name}", path)
	case !literalForm.MatchString(literal) || forbiddenEscape.MatchString(literal):
		return invalid("the path %q has characters that must be percent-encoded, or that may not appear at all", path)
	}
	before, _, _ := strings.Cut(literal, "?")
	for _, segment := range strings.Split(before, "/")[1:] {
		if segment == "." || segment == ".." {
			return invalid("the path %q has a dot segment", path)
		}
	}
	if strings.Contains(before, "//") {
		return invalid("the path %q has an empty segment", path)
	}
	return nil
}

// fill renders path and query; both are fully escaped.
func fill(template string, a *args) (path, query string, err error) {
	if err := CheckTemplate(template); err != nil {
		return "", "", err
	}
	before, after, hasQuery := strings.Cut(template, "?")
	segments := strings.Split(before, "/")
	for i, s := range segments {
		if segments[i], err = fillSegment(s, a); err != nil {
			return "", "", err
		}
	}
	path = strings.Join(segments, "/")
	if !hasQuery {
		return path, "", nil
	}
	var pairs []string
	for _, pair := range strings.Split(after, "&") {
		filled, keep, err := fillPair(pair, a)
		if err != nil {
			return "", "", err
		}
		if keep {
			pairs = append(pairs, filled)
		}
	}
	return path, strings.Join(pairs, "&"), nil
}

func fillSegment(segment string, a *args) (string, error) {
	if !strings.Contains(segment, "{") {
		return segment, nil
	}
	var plain strings.Builder // what a server sees after decoding
	out, err := replace(segment, func(name string) (string, error) {
		v, there, err := a.scalar(name)
		if err == nil && (!there || v == "") {
			err = invalid("argument %q stands in the path and is missing or empty", name)
		}
		if err != nil {
			return "", err
		}
		plain.WriteString(v)
		return escape(v), nil
	})
	if err != nil {
		return "", err
	}
	// Servers that decode slashes, or treat a backslash as one, must find nothing.
	for _, part := range strings.FieldsFunc(plain.String(), func(r rune) bool { return r == '/' || r == '\\' }) {
		if part == "." || part == ".." {
			return "", invalid("an argument would make a dot segment in the path")
		}
	}
	if out == "." || out == ".." {
		return "", invalid("an argument would make a dot segment in the path")
	}
	return out, nil
}

// fillPair renders one name=value; a pair whose only value is an absent argument
// is left out.
func fillPair(pair string, a *args) (out string, keep bool, err error) {
	name, value, _ := strings.Cut(pair, "=")
	if m := placeholder.FindStringSubmatch(value); m != nil && m[0] == value {
		if _, there, err := a.scalar(m[1]); err != nil || !there {
			return "", false, err
		}
	}
	if strings.Contains(name, "{") {
		return "", false, invalid("the name of a query parameter cannot be an argument: %q", pair)
	}
	out, err = replace(pair, func(name string) (string, error) {
		v, there, err := a.scalar(name)
		if err == nil && !there {
			err = invalid("argument %q is missing", name)
		}
		return escape(v), err
	})
	return out, err == nil, err
}

func replace(s string, with func(name string) (string, error)) (string, error) {
	var first error
	out := placeholder.ReplaceAllStringFunc(s, func(m string) string {
		v, err := with(m[1 : len(m)-1])
		if err != nil && first == nil {
			first = err
		}
		return v
	})
	return out, first
}

// escape percent-encodes everything but unreserved characters.
func escape(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '.', c == '_', c == '~':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// body is a JSON object of the named arguments; nil when none is named.
func body(names []string, a *args) ([]byte, error) {
	if len(names) == 0 {
		return nil, nil
	}
	out := map[string]json.RawMessage{}
	for _, n := range names {
		a.used[n] = true
		if raw, ok := a.values[n]; ok {
			out[n] = raw
		}
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(out)
	return []byte(strings.TrimSuffix(b.String(), "\n")), err
}
