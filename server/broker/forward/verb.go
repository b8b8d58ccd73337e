package forward

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"bivouac/edge/protocol"
)

// The protocols.
const (
	Go  = "go"  // a module proxy, with the checksum database that it passes on
	NPM = "npm" // a registry of packages
	Git = "git" // git over HTTP, the smart protocol
)

// verb is one kind of request that reads.
type verb struct {
	methods []string
	// path that a decoded path must end in; empty: any.
	end string
	// service of the query, which must be all of it.
	service string
	// accepts is the content type of its body; empty: it has none.
	accepts string
}

var reading = []string{http.MethodGet, http.MethodHead}

// verbs is everything that may be asked for.
var verbs = map[string][]verb{
	Go:  {{methods: reading}},
	NPM: {{methods: reading}},
	Git: {
		{methods: []string{http.MethodGet}, end: "/info/refs", service: "git-upload-pack"},
		{methods: []string{http.MethodPost}, end: "/git-upload-pack", accepts: "application/x-git-upload-pack-request"},
	},
}

// says is what a protocol admits, for people and models.
var says = map[string]string{
	Go:  "GET and HEAD",
	NPM: "GET and HEAD: packages are installed from it, not published or audited",
	Git: "clone and fetch over HTTP, and no push",
}

// Protocols by name, sorted.
func Protocols() []string { return slices.Sorted(maps.Keys(verbs)) }

// Verbs says what a protocol admits, for people.
func Verbs(protocol string) string { return says[protocol] }

// Known reports a protocol.
func Known(name string) bool { return verbs[name] != nil }

// admit finds the verb of a request.
func (u *Upstream) admit(method string, at *url.URL, contentType string) (verb, error) {
	for _, v := range verbs[u.cfg.Protocol] {
		switch {
		case !slices.Contains(v.methods, method), !strings.HasSuffix(at.Path, v.end):
		case v.service != "" && at.RawQuery != "service="+v.service:
		case v.accepts != "" && (contentType != v.accepts || at.RawQuery != ""):
		default:
			return v, nil
		}
	}
	return verb{}, protocol.Errorf(protocol.CodePolicyDenied, "destination %s does not admit %s %s: sandboxed code may use %s",
		u.cfg.Name, clip(method, 16), clip(at.EscapedPath(), 200), says[u.cfg.Protocol])
}

// clip bounds what is said of something foreign.
func clip(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s[:min(len(s), n)])
	return s
}
