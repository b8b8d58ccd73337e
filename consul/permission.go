package consul

import (
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Request is an HTTP request as it would leave, without its credential.
type Request struct {
	Method string
	// Path as it stands on the wire: escaped, without the query.
	Path   string
	Header http.Header
	// Sealed headers are filled in later with what nobody may look at. A permission
	// that asks for one of them denies.
	Sealed []string
}

// Permission is one L7 rule of a source. The first that matches a request decides.
type Permission struct {
	Allow bool
	HTTP  HTTP
	// At is where it stands, file:line.
	At string
}

// HTTP says which requests a permission is about: those that fit all that is
// given. At most one of the paths is.
type HTTP struct {
	PathExact  string
	PathPrefix string
	PathRegex  *regexp.Regexp // matches the whole path
	Methods    []string       // in upper case
	Header     []Header
}

// Header asks for one header: Present, or one of the texts, or Regex.
type Header struct {
	Name    string
	Present bool
	Exact   string
	Prefix  string
	Suffix  string
	// Contains a text anywhere.
	Contains string
	Regex    *regexp.Regexp // matches the whole value
	// Invert the result. A header that is not there fits an inverted Present alone.
	Invert bool
	// IgnoreCase of the texts.
	IgnoreCase bool
}

// forms of a path in which an upstream may read it: as sent, decoded, and cleaned
// of dots and doubled slashes. What is allowed must be allowed in each.
func (r *Request) forms() []string {
	out := []string{r.Path}
	decoded, err := url.PathUnescape(r.Path)
	if err != nil {
		return nil
	}
	cleaned := path.Clean("/" + decoded)
	if strings.HasSuffix(decoded, "/") && cleaned != "/" {
		cleaned += "/"
	}
	for _, form := range []string{decoded, cleaned} {
		if !slices.Contains(out, form) {
			out = append(out, form)
		}
	}
	return out
}

// looksAtSealed names a sealed header that one of the permissions asks for.
func looksAtSealed(permissions []Permission, sealed []string) (string, bool) {
	for _, p := range permissions {
		for _, h := range p.HTTP.Header {
			if slices.ContainsFunc(sealed, func(s string) bool { return s != "" && strings.EqualFold(s, h.Name) }) {
				return h.Name, true
			}
		}
	}
	return "", false
}

func (h HTTP) matches(r *Request, form string) bool {
	if h.PathExact != "" && form != h.PathExact {
		return false
	}
	if !strings.HasPrefix(form, h.PathPrefix) {
		return false
	}
	if h.PathRegex != nil && !h.PathRegex.MatchString(form) {
		return false
	}
	if len(h.Methods) > 0 && !slices.Contains(h.Methods, r.Method) {
		return false
	}
	return !slices.ContainsFunc(h.Header, func(header Header) bool { return !header.matches(r.Header) })
}

// matches a header by its values joined with commas, as a proxy sees them.
func (h Header) matches(headers http.Header) bool {
	values := headers.Values(h.Name)
	if len(values) == 0 {
		return h.Present && h.Invert
	}
	return h.fits(strings.Join(values, ",")) != h.Invert
}

func (h Header) fits(value string) bool {
	fold := func(s string) string {
		if h.IgnoreCase {
			return strings.ToLower(s)
		}
		return s
	}
	switch value = fold(value); {
	case h.Exact != "":
		return value == fold(h.Exact)
	case h.Prefix != "":
		return strings.HasPrefix(value, fold(h.Prefix))
	case h.Suffix != "":
		return strings.HasSuffix(value, fold(h.Suffix))
	case h.Contains != "":
		return strings.Contains(value, fold(h.Contains))
	case h.Regex != nil:
		return h.Regex.MatchString(value)
	}
	return h.Present
}

// Whole compiles an expression that must match all of a text, as Envoy has it.
func Whole(expr string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(expr); err != nil {
		return nil, err // before the brackets, which could hide an error
	}
	return regexp.Compile(`\A(?:` + expr + `)\z`)
}
