package client

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
)

// Kind is what an answer means to whoever asked.
type Kind string

const (
	// Refused: the token may not do this.
	Refused Kind = "refused"
	// NoToken: what was sent is no token there, or could not be sent.
	NoToken Kind = "no token"
	// Absent: nothing is there.
	Absent Kind = "absent"
	// Changed: somebody else wrote in between.
	Changed Kind = "changed"
	// Invalid: the server has read what was asked and says it is wrong.
	Invalid Kind = "invalid"
	// Disabled: the server has intentions turned off.
	Disabled Kind = "disabled"
	// Limited: too many requests; later ones are answered.
	Limited Kind = "limited"
	// Leaderless: it runs, and does not know what holds.
	Leaderless Kind = "leaderless"
	// Strange: an answer that is not of such a server.
	Strange Kind = "strange"
	// Away: no answer.
	Away Kind = "away"
)

// Fault is a request that was not answered with what was asked for.
type Fault struct {
	Kind   Kind
	Asked  string
	Status int    // zero: no answer
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
	return fmt.Sprintf("%s: %s", f.Asked, why)
}

func (f *Fault) Unwrap() error { return f.Err }

// KindOf an error of this package; empty for every other.
func KindOf(err error) Kind {
	var f *Fault
	if errors.As(err, &f) {
		return f.Kind
	}
	return ""
}

// Answered reports an error that is Consul's own word.
func Answered(err error) bool {
	var f *Fault
	return errors.As(err, &f) && f.Status != 0
}

// kinds in the product's words: what the error says of the server, its code, and what
// mends it.
var kinds = map[Kind]struct {
	words string
	code  protocol.Code
	mend  string
}{
	Refused:    {"refuses it to the token", protocol.CodePermissionDenied, "bivouac consul setup --apply  (as an admin of Consul: it makes the policy and the role; the token needs that role)"},
	NoToken:    {"does not take the token", protocol.CodeUnauthenticated, "consul acl token create -role-name bivouac-broker  (the server: bivouac-server), and put its SecretID into the token file; it is read again for every request"},
	Absent:     {"has nothing there", protocol.CodeNotFound, ""},
	Changed:    {"was changed in between", protocol.CodeConflict, "the same command again"},
	Invalid:    {"says that the request is wrong", protocol.CodeFailedPrecondition, ""},
	Disabled:   {"has intentions turned off", protocol.CodeFailedPrecondition, "connect { enabled = true } in the configuration of Consul's servers"},
	Limited:    {"answers no more for now", protocol.CodeRateLimited, "limits in Consul's configuration"},
	Leaderless: {"has no leader that could say what holds", protocol.CodeUnavailable, "consul operator raft list-peers  (most of the servers must be there)"},
	Strange:    {"does not answer as Consul does", protocol.CodeUnavailable, "name Consul's HTTPS port (8501), or that of its agent on this machine (8500)"},
	Away:       {"does not answer", protocol.CodeUnavailable, "consul members  (from the broker's machine, with its CONSUL_HTTP_ADDR and CONSUL_CACERT)"},
}

// Mend is the command that mends what an error says; empty where there is none.
func Mend(err error) string { return kinds[KindOf(err)].mend }

func (c *Client) fault(f *Fault) error {
	e := protocol.Errorf(kinds[f.Kind].code, "Consul (%s) %s: %w", c.cfg.Address, kinds[f.Kind].words, f)
	if f.Kind == Away || f.Kind == Leaderless || f.Kind == Limited {
		e.RetryAfter = time.Second
	}
	return e
}

// inner is what a failed request leaves to say: its URL stands in the error already.
func inner(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

const maxSaid = 300

func oneLine(text string) string {
	text = legible.Line(strings.Join(strings.Fields(text), " "))
	if len(text) > maxSaid {
		text = strings.ToValidUTF8(text[:maxSaid], "") + "…"
	}
	return text
}
