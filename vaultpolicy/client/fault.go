package client

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
)

// Kind is what an answer means to whoever asked.
type Kind string

const (
	// Absent: the path may be asked, and nothing is there.
	Absent Kind = "absent"
	// Refused: the token may not do this, or is no token any more. Which of the two
	// only another question tells.
	Refused Kind = "refused"
	// Disabled: the person for whom a token was asked is disabled.
	Disabled Kind = "disabled"
	// Invalid: the server has read what was asked and says it is wrong.
	Invalid Kind = "invalid"
	// Changed: somebody else wrote in between (check-and-set).
	Changed Kind = "changed"
	// NoAccessor: the server knows no token of this accessor.
	NoAccessor Kind = "no accessor"
	// Unmounted: no engine is at the path.
	Unmounted Kind = "unmounted"
	// NoNamespace: the server has no namespace of the name.
	NoNamespace Kind = "no namespace"
	// Limited: too many requests; later ones are answered.
	Limited Kind = "limited"
	// Sealed: the server runs and can decrypt nothing.
	Sealed Kind = "sealed"
	// Away: no answer, or one that says nothing about what was asked.
	Away Kind = "away"
)

// Unknown reports that nothing was learned: neither that something is, nor that
// it is not.
func (k Kind) Unknown() bool { return k == Limited || k == Sealed || k == Away }

// Fault is a request that was not answered with what was asked for.
type Fault struct {
	Kind   Kind
	Status int // zero: no answer
	Verb   string
	Path   string
	Said   string // the server's words, legible, on one line
	Err    error  // without an answer: what happened
}

func (f *Fault) Error() string {
	why := f.Said
	if f.Err != nil {
		why = legible.Line(f.Err.Error())
	}
	if why == "" {
		why = string(f.Kind)
	}
	return fmt.Sprintf("%s %s: %s", f.Verb, f.Path, why)
}

func (f *Fault) Unwrap() error { return f.Err }

// FaultOf an error of this package; nil for every other.
func FaultOf(err error) *Fault {
	var f *Fault
	if errors.As(err, &f) {
		return f
	}
	return nil
}

// KindOf an error of this package; empty for every other.
func KindOf(err error) Kind {
	if f := FaultOf(err); f != nil {
		return f.Kind
	}
	return ""
}

// codes of kinds, where whoever asked does not know better.
var codes = map[Kind]protocol.Code{
	Absent: protocol.CodeNotFound, Refused: protocol.CodeFailedPrecondition, Disabled: protocol.CodePermissionDenied, Invalid: protocol.CodeFailedPrecondition,
	Changed: protocol.CodeConflict, NoAccessor: protocol.CodeNotFound, Unmounted: protocol.CodeFailedPrecondition, NoNamespace: protocol.CodeFailedPrecondition,
	Limited: protocol.CodeRateLimited, Sealed: protocol.CodeUnavailable, Away: protocol.CodeUnavailable,
}

const maxSaid = 300

// classify makes the product's error of a failed request.
func classify(server, verb, path string, err error) error {
	f := &Fault{Kind: Away, Verb: verb, Path: path}
	var said *api.ResponseError
	var other *strange
	switch {
	case errors.Is(err, errDeleted):
		f.Kind, f.Status, f.Said = Absent, http.StatusNotFound, err.Error()
	case errors.As(err, &other):
		f.Status, f.Said = other.status, other.Error()
	case errors.As(err, &said):
		f.Status, f.Said = said.StatusCode, oneLine(said)
		if !said.RawError {
			f.Kind = kindOf(f.Status, f.Said)
		}
	default:
		f.Err = inner(err)
	}
	e := protocol.Errorf(codes[f.Kind], "%s %s: %w", server, words[f.Kind], f)
	if f.Kind.Unknown() {
		e.RetryAfter = time.Second
	}
	return e
}

var words = map[Kind]string{
	Absent: "has nothing there", Refused: "refuses", Disabled: "refuses", Invalid: "says that the request is wrong", Changed: "says that it was changed in between",
	NoAccessor: "knows no such token", Unmounted: "has no engine there: bivouac vault setup shows what is missing", Limited: "answers no more for now",
	NoNamespace: "has no such namespace", Sealed: "is sealed: an operator must unseal it", Away: "does not answer",
}

// inner is what a failed request leaves to say: its URL stands in the error already.
func inner(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// kindOf an answer of the server's that is no success. The servers tell several things apart in
// words alone; the words are the same in both.
func kindOf(status int, said string) Kind {
	has := func(text string) bool { return strings.Contains(said, text) }
	switch {
	case status == http.StatusTooManyRequests:
		return Limited
	case status == http.StatusServiceUnavailable && has("sealed"):
		return Sealed
	// A login that is refused has, with some versions, the status of a failure.
	case has("invalid secret id"), has("invalid role or secret ID"), has("invalid role ID"):
		return Refused
	case status >= 500 || status == http.StatusPreconditionFailed || status == http.StatusRequestTimeout:
		return Away
	case has("namespace not found"):
		return NoNamespace
	case has("no handler for route") || has("unsupported path") && status == http.StatusNotFound:
		return Unmounted
	// Both servers answer 403 or 400 here, depending on their version.
	case has("invalid accessor"):
		return NoAccessor
	case status == http.StatusForbidden && has("entity alias is disabled"):
		return Disabled
	case status == http.StatusForbidden || status == http.StatusUnauthorized:
		return Refused
	case status == http.StatusNotFound && said == "": // its list of errors is empty
		return Absent
	case has("check-and-set parameter did not match"):
		return Changed
	case status >= 400:
		return Invalid
	}
	return Away // a redirect that could not be followed
}

// oneLine is what the server said. A raw body is a page of something in between.
func oneLine(e *api.ResponseError) string {
	if e.RawError && strings.Contains(strings.Join(e.Errors, " "), wantsTLS) {
		return "it speaks TLS (" + wantsTLS + ")"
	}
	if e.RawError {
		return (&strange{e.StatusCode}).Error()
	}
	text := legible.Line(strings.Join(strings.Fields(strings.Join(e.Errors, "; ")), " "))
	if len(text) > maxSaid {
		text = strings.ToValidUTF8(text[:maxSaid], "") + "…"
	}
	return text
}
