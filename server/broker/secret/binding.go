package secret

import (
	"net/http"
	"regexp"
	"strings"

	"golang.org/x/net/http/httpguts"

	"bivouac/edge/protocol"
)

// Binding says in which header a value travels, and in which words: the same
// value is `x-api-key: v` for one upstream and `Authorization: Bearer v` for
// another.
type Binding struct {
	Header string
	// Format holds {value} exactly once, such as "Bearer {value}".
	Format string
}

// valueMark is the placeholder of a format. It never leaves.
const valueMark = "{value}"

// reserved headers belong to the connection or to whoever makes the request.
var reserved = regexp.MustCompile(`(?i)^(host|connection|content-length|content-type|transfer-encoding|te|trailer|upgrade|expect|accept|accept-encoding|keep-alive|proxy-.*|cookie2|user-agent|anthropic-version)$`)

// ReservedHeader reports a header that no credential and no key may take.
func ReservedHeader(name string) bool { return reserved.MatchString(name) }

// Check refuses a binding that could not be sent.
func (b Binding) Check() error {
	switch {
	case !httpguts.ValidHeaderFieldName(b.Header) || ReservedHeader(b.Header):
		return protocol.Errorf(protocol.CodeInvalidArgument, "%q is no header that may carry a credential", b.Header)
	case strings.Count(b.Format, valueMark) != 1 || strings.ContainsAny(strings.Replace(b.Format, valueMark, "", 1), "{}"):
		return protocol.Errorf(protocol.CodeInvalidArgument, `format %q must hold {value} exactly once, such as "Bearer {value}"`, b.Format)
	case !httpguts.ValidHeaderFieldValue(b.Format):
		return protocol.Errorf(protocol.CodeInvalidArgument, "format %q cannot stand in a header", b.Format)
	}
	return nil
}

// Put fills the header for the upstream that whose names. What would go out
// without its value, or with a placeholder, fails closed: nothing is set.
func (b Binding) Put(h http.Header, v Value, whose string) error {
	if v.IsZero() {
		return protocol.Errorf(protocol.CodePolicyDenied, "the credential of %s has no value: nothing was sent", whose)
	}
	filled := strings.Replace(b.Format, valueMark, v.Reveal(), 1)
	if !strings.Contains(b.Format, valueMark) || strings.Contains(filled, valueMark) || !httpguts.ValidHeaderFieldValue(filled) {
		return protocol.Errorf(protocol.CodePolicyDenied, "the credential of %s cannot stand in a header: nothing was sent; store exactly what the header needs", whose)
	}
	h.Set(b.Header, filled)
	return nil
}
