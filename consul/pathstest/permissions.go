package pathstest

import (
	"net/http"
	"regexp"
	"slices"
	"testing"

	"bivouac/consul"
)

// RequestRow is one request and its verdict.
type RequestRow struct {
	Name, Source, Destination, Method, Path string
	Header                                  http.Header
	Allowed                                 bool
}

func whole(expr string) *regexp.Regexp {
	re, err := consul.Whole(expr)
	if err != nil {
		panic(err)
	}
	return re
}

func may(h consul.HTTP) consul.Permission { return consul.Permission{Allow: true, HTTP: h} }
func not(h consul.HTTP) consul.Permission { return consul.Permission{HTTP: h} }

func with(path string, h consul.Header) consul.Permission {
	h.Name = "x-env"
	return may(consul.HTTP{PathExact: path, Header: []consul.Header{h}})
}

// PermissionEntries and PermissionRows: the first permission that matches decides;
// the most exact source alone is asked; what no permission matches is denied,
// whatever a wider source says; headers as Envoy matches them.
var (
	PermissionEntries = []consul.Intention{
		{Destination: "api", Sources: []consul.Source{
			{Name: "web", Permissions: []consul.Permission{
				not(consul.HTTP{PathPrefix: "/v1/secret"}),
				may(consul.HTTP{PathPrefix: "/v1/", Methods: []string{"GET", "HEAD"}}),
				may(consul.HTTP{PathExact: "/v2"}),
				may(consul.HTTP{PathRegex: whole("/v3/[a-z]+|/v4"), Methods: []string{"POST"}}),
				not(consul.HTTP{Methods: []string{"DELETE"}}),
				may(consul.HTTP{PathPrefix: "/any/"}),
			}},
			{Name: "*", Allow: true},
		}},
		{Destination: "headers", Sources: []consul.Source{
			{Name: "web", Permissions: []consul.Permission{
				with("/present", consul.Header{Present: true}),
				with("/absent", consul.Header{Present: true, Invert: true}),
				with("/exact", consul.Header{Exact: "test"}),
				with("/exact-not", consul.Header{Exact: "live", Invert: true}),
				with("/prefix", consul.Header{Prefix: "te"}),
				with("/suffix", consul.Header{Suffix: "ST", IgnoreCase: true}),
				with("/contains", consul.Header{Contains: "es"}),
				with("/regex", consul.Header{Regex: whole("t.st")}),
				may(consul.HTTP{PathExact: "/two", Header: []consul.Header{{Name: "x-env", Exact: "test"}, {Name: "x-team", Present: true}}}),
			}},
		}},
		{Destination: "wide", Sources: []consul.Source{
			{Name: "*", Permissions: []consul.Permission{may(consul.HTTP{PathPrefix: "/open/"})}},
			{Name: "banned"},
		}},
		{Destination: "*", Sources: []consul.Source{{Name: "*", Allow: true}}},
	}
	test           = http.Header{"X-Env": {"test"}}
	live           = http.Header{"X-Env": {"live"}}
	PermissionRows = []RequestRow{
		{"prefix and method", "web", "api", "GET", "/v1/items", nil, true},
		{"another method", "web", "api", "POST", "/v1/items", nil, false},
		{"an earlier deny", "web", "api", "GET", "/v1/secret", nil, false},
		{"deny by prefix", "web", "api", "GET", "/v1/secrets/1", nil, false},
		{"exact", "web", "api", "PATCH", "/v2", nil, true},
		{"exact is exact", "web", "api", "GET", "/v2/", nil, false},
		{"regex", "web", "api", "POST", "/v3/abc", nil, true},
		{"regex, other branch", "web", "api", "POST", "/v4", nil, true},
		{"regex is whole", "web", "api", "POST", "/v3/abc/1", nil, false},
		{"regex from the beginning", "web", "api", "POST", "/x/v4", nil, false},
		{"method alone", "web", "api", "DELETE", "/any/x", nil, false},
		{"behind the deny", "web", "api", "PUT", "/any/x", nil, true},
		{"no match is no wider source", "web", "api", "GET", "/elsewhere", nil, false},
		{"the wider source itself", "other", "api", "GET", "/elsewhere", nil, true},
		{"no match is no wider destination", "web", "headers", "GET", "/elsewhere", nil, false},
		{"escaped deny", "web", "api", "GET", "/v1/%73ecret", nil, false},
		{"escaped slash", "web", "api", "GET", "/v1/x%2F..%2Fsecret", nil, false},
		{"dots", "web", "api", "GET", "/v1/x/../secret", nil, false},
		{"doubled slash", "web", "api", "GET", "/v1//secret", nil, false},
		{"dots out of the allowed", "web", "api", "PUT", "/any/../elsewhere", nil, false},
		{"harmless escapes", "web", "api", "GET", "/v1/a%20b", nil, true},
		{"broken escape", "web", "api", "GET", "/v1/%zz", nil, false},
		{"present", "web", "headers", "GET", "/present", test, true},
		{"not present", "web", "headers", "GET", "/present", nil, false},
		{"absent", "web", "headers", "GET", "/absent", nil, true},
		{"not absent", "web", "headers", "GET", "/absent", test, false},
		{"header exact", "web", "headers", "GET", "/exact", test, true},
		{"header not exact", "web", "headers", "GET", "/exact", live, false},
		{"header in other case", "web", "headers", "GET", "/exact", http.Header{"X-Env": {"TEST"}}, false},
		{"inverted", "web", "headers", "GET", "/exact-not", test, true},
		{"inverted, fits", "web", "headers", "GET", "/exact-not", live, false},
		{"inverted, absent", "web", "headers", "GET", "/exact-not", nil, false},
		{"header prefix", "web", "headers", "GET", "/prefix", test, true},
		{"not its prefix", "web", "headers", "GET", "/prefix", live, false},
		{"suffix in any case", "web", "headers", "GET", "/suffix", test, true},
		{"not its suffix", "web", "headers", "GET", "/suffix", live, false},
		{"contains", "web", "headers", "GET", "/contains", test, true},
		{"does not contain", "web", "headers", "GET", "/contains", live, false},
		{"header regex", "web", "headers", "GET", "/regex", test, true},
		{"header regex is whole", "web", "headers", "GET", "/regex", http.Header{"X-Env": {"tests"}}, false},
		{"two values are one text", "web", "headers", "GET", "/exact", http.Header{"X-Env": {"test", "live"}}, false},
		{"all headers", "web", "headers", "GET", "/two", http.Header{"X-Env": {"test"}, "X-Team": {"a"}}, true},
		{"one of the headers", "web", "headers", "GET", "/two", test, false},
		{"wildcard source", "other", "wide", "GET", "/open/x", nil, true},
		{"wildcard source, no match", "other", "wide", "GET", "/shut/x", nil, false},
		{"exact source before it", "banned", "wide", "GET", "/open/x", nil, false},
		{"connections as before", "web", "elsewhere", "GET", "/x", nil, true},
	}
)

// known leaves out the permissions that a source does not know, by their paths: an older
// server cannot be given every question about a header.
func known(s Source) (entries []consul.Intention, left map[string]bool) {
	older, ok := s.(interface{ Knows(h consul.Header) bool })
	if !ok {
		return PermissionEntries, nil
	}
	left = map[string]bool{}
	for _, in := range PermissionEntries {
		out := consul.Intention{Destination: in.Destination}
		for _, source := range in.Sources {
			had := source.Permissions
			source.Permissions = nil
			for _, p := range had {
				if slices.ContainsFunc(p.HTTP.Header, func(h consul.Header) bool { return !older.Knows(h) }) {
					left[p.HTTP.PathExact] = true
					continue
				}
				source.Permissions = append(source.Permissions, p)
			}
			out.Sources = append(out.Sources, source)
		}
		entries = append(entries, out)
	}
	return entries, left
}

func permissions(t *testing.T, open func(t *testing.T) Source) {
	s := open(t)
	entries, left := known(s)
	s.Replace(t, entries...)
	settled(t, s, "web", "api", true)
	for _, row := range PermissionRows {
		if row.Destination == "headers" && left[row.Path] {
			continue
		}
		d := s.Decide(row.Source, row.Destination, &consul.Request{Method: row.Method, Path: row.Path, Header: row.Header})
		if d.Allowed != row.Allowed || d.Reason == "" {
			t.Errorf("%s: %s %s from %s to %s: allowed=%v because %s", row.Name, row.Method, row.Path, row.Source, row.Destination, d.Allowed, d.Reason)
		}
	}
	// Before there is a request, the question is whether any could be allowed.
	s.Replace(t, consul.Intention{Destination: "api", Sources: []consul.Source{
		{Name: "web", Permissions: []consul.Permission{not(consul.HTTP{PathPrefix: "/"})}}, {Name: "other", Permissions: []consul.Permission{may(consul.HTTP{PathPrefix: "/"})}},
	}})
	settled(t, s, "web", "api", false)
	if d := s.Decide("other", "api", nil); !d.Allowed {
		t.Errorf("a source with an allowing permission: %s", d.Reason)
	}
	// Nobody looks at what carries a credential.
	s.Replace(t, consul.Intention{Destination: "api", Sources: []consul.Source{
		{Name: "web", Permissions: []consul.Permission{may(consul.HTTP{Header: []consul.Header{{Name: "authorization", Present: true, Invert: true}}})}},
	}})
	settled(t, s, "web", "api", true)
	plain := consul.Request{Method: "GET", Path: "/"}
	if d := s.Decide("web", "api", &plain); !d.Allowed {
		t.Errorf("without a credential: %s", d.Reason)
	}
	plain.Sealed = []string{"Authorization"}
	if d := s.Decide("web", "api", &plain); d.Allowed {
		t.Errorf("a sealed header was looked at: %s", d.Reason)
	}
}
