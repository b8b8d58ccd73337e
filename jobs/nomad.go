package jobs

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
)

// Nomad is a client of one token. Of nomad/api only what the servers answer is used:
// nothing here dials a node, which would be given the token.
type Nomad struct {
	api     *api.Client
	carrier *http.Client
	address string
	// from says where the token was found, and file is its file, if it has one.
	from, file string
	// admin: it is a person's, who sets Nomad up or looks at it.
	admin bool
	sites []Site
}

// open makes a client with the token as it is now, which waits so long for the beginning
// of an answer.
func (c Config) open(first time.Duration) (*Nomad, error) {
	token, err := c.token()
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "nomad.token_file: %w", err)
	}
	carrier, err := c.client(first)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "nomad: %w", err)
	}
	client, err := api.NewClient(&api.Config{Address: c.Address, SecretID: token, HttpClient: carrier})
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "nomad.address: %w", err)
	}
	n := &Nomad{api: client, carrier: carrier, address: c.Address, from: "of NOMAD_TOKEN", file: c.TokenFile, admin: c.admin && c.TokenFile == "", sites: c.Sites()}
	if c.TokenFile != "" {
		n.from = "in " + c.TokenFile
	}
	return n, nil
}

// Close its connections.
func (n *Nomad) Close() { n.carrier.CloseIdleConnections() }

// query is one question in a namespace.
func query(ctx context.Context, namespace string) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
}

// change is one request that writes, in a namespace.
func change(ctx context.Context, namespace string) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
}

// failed gives what Nomad answered a code, and says what was asked and what mends it.
func (n *Nomad) failed(what, right string, err error) error {
	if err == nil {
		return nil
	}
	var answer api.UnexpectedResponseError
	if !errors.As(err, &answer) || !answer.HasStatusCode() {
		return protocol.Errorf(protocol.CodeUnavailable, "%s: Nomad at %s does not answer: %w; see `nomad status`", what, n.address, err)
	}
	said := legible.Line(strings.TrimSpace(answer.Body()))
	switch status := answer.StatusCode(); {
	case strings.Contains(said, "token expired"): // it says so with 403 or, of itself, with 500
		return protocol.Errorf(protocol.CodeUnauthenticated, "%s: the token has expired at Nomad (%s): %s", what, said, n.renew())
	case status == http.StatusForbidden && n.stranger(), status == http.StatusUnauthorized:
		return protocol.Errorf(protocol.CodeUnauthenticated, "%s: Nomad at %s knows this token no more (%s): %s", what, n.address, said, n.renew())
	case status == http.StatusForbidden:
		return protocol.Errorf(protocol.CodePermissionDenied, "%s: %w", what, n.lacks(right))
	case status == http.StatusNotFound:
		return protocol.Errorf(protocol.CodeNotFound, "%s: %s", what, said)
	case status >= 500:
		return protocol.Errorf(protocol.CodeUnavailable, "%s: Nomad at %s answers %d %s; see `nomad server members`", what, n.address, status, said)
	default:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s: Nomad refuses it: %d %s", what, status, said)
	}
}

// management is the right to everything.
const management = "management rights"

// renew says what is done about a token that is none any more.
func (n *Nomad) renew() string {
	if n.admin {
		return "put another into NOMAD_TOKEN (`nomad login`, or `nomad acl token create -type management`)"
	}
	return "make another with `" + n.another() + "`"
}

// stranger reports a token that Nomad does not know, to which it only says that a question
// is not permitted: every token that it knows may ask who it is.
func (n *Nomad) stranger() bool {
	_, _, err := n.api.ACLTokens().Self(nil)
	var answer api.UnexpectedResponseError
	return errors.As(err, &answer) && answer.StatusCode() == http.StatusForbidden
}

func notFound(err error) bool { return protocol.CodeOf(err) == protocol.CodeNotFound }

// Ask opens a client with the token of the configuration, and closes it after the work.
func (c Config) Ask(work func(*Nomad) error) error { return c.ask(answerTimeout, work) }

func (c Config) ask(first time.Duration, work func(*Nomad) error) error {
	n, err := c.open(first)
	if err != nil {
		return err
	}
	defer n.Close()
	return work(n)
}
