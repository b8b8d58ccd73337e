package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// reach is the value at a path of a JSON document, as it was written.
func reach(doc json.RawMessage, path []string) (json.RawMessage, error) {
	if len(path) == 0 {
		if !json.Valid(doc) {
			return nil, fmt.Errorf("it is no JSON")
		}
		return bytes.TrimSpace(doc), nil
	}
	var in map[string]json.RawMessage
	if json.Unmarshal(doc, &in) != nil || in == nil {
		return nil, fmt.Errorf("it is no JSON object")
	}
	v, ok := in[path[0]]
	if !ok {
		return nil, fmt.Errorf("it has no %q", path[0])
	}
	return reach(v, path[1:])
}

// replaced is a document with another value at a path, and nothing at a second one.
func replaced(doc json.RawMessage, path, without []string, v json.RawMessage) (json.RawMessage, error) {
	if len(path) == 0 {
		return v, nil
	}
	out, err := with(doc, path, v)
	if err != nil || len(without) == 0 {
		return out, err
	}
	if _, err := reach(out, without); err != nil {
		return out, nil
	}
	return with(out, without, nil)
}

// with sets the value at a path; nil takes it out.
func with(doc json.RawMessage, path []string, v json.RawMessage) (json.RawMessage, error) {
	var in map[string]json.RawMessage
	if err := json.Unmarshal(doc, &in); err != nil {
		return nil, err
	}
	switch {
	case len(path) > 1:
		inner, err := with(in[path[0]], path[1:], v)
		if err != nil {
			return nil, err
		}
		in[path[0]] = inner
	case v == nil:
		delete(in, path[0])
	default:
		in[path[0]] = v
	}
	return plain(in)
}

// plain is JSON in which nothing is escaped that need not be.
func plain(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// nextLink is the target of the first link with the relation next (RFC 8288, 3);
// empty: there is none.
func nextLink(h http.Header) string {
	for rest := strings.Join(h.Values("Link"), ","); ; {
		_, after, found := strings.Cut(rest, "<")
		if !found {
			return ""
		}
		target, after, found := strings.Cut(after, ">")
		if !found {
			return ""
		}
		next := false
		for {
			after = strings.TrimLeft(after, " \t")
			if !strings.HasPrefix(after, ";") {
				break
			}
			var name, value string
			name, value, after = parameter(after[1:])
			next = next || strings.EqualFold(name, "rel") && hasNext(value)
		}
		if next {
			return target
		}
		rest = after
	}
}

// parameter of a link: its name, its value without quotes, and what follows.
func parameter(s string) (name, value, rest string) {
	i := strings.IndexAny(s, "=;,")
	if i < 0 || s[i] != '=' {
		if i < 0 {
			i = len(s)
		}
		return strings.TrimSpace(s[:i]), "", s[i:]
	}
	name, s = strings.TrimSpace(s[:i]), strings.TrimLeft(s[i+1:], " \t")
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexAny(s, ";,")
		if end < 0 {
			end = len(s)
		}
		return name, strings.TrimSpace(s[:end]), s[end:]
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case s[i] == '"':
			return name, b.String(), s[i+1:]
		default:
			b.WriteByte(s[i])
		}
	}
	return name, b.String(), ""
}

func hasNext(rel string) bool {
	return slices.ContainsFunc(strings.Fields(rel), func(r string) bool { return strings.EqualFold(r, "next") })
}
