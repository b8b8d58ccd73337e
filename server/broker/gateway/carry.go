package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"

	"bivouac/edge/protocol"
)

// Carrier takes a credential along that is no value of one header: a signature of the
// request, a user and a password in two headers, a certificate of the connection.
type Carrier struct {
	// PutFunc makes a request one that carries it, each time before it leaves.
	PutFunc func(ctx context.Context, r *http.Request) error
	// Client in place of the destination's; nil: that one.
	Client *http.Client
}

// put is the last step before a request leaves. One whose credential has no binding is
// not sent without a carrier.
func (s *sending) put(ctx context.Context, req *http.Request) error {
	switch {
	case s.r.issued == nil:
		return nil
	case s.pass.Carrier.PutFunc == nil:
		return protocol.Errorf(protocol.CodePolicyDenied, "the credential of destination %s is issued, and nobody carries it: nothing was sent", s.r.d.cfg.Name)
	}
	return s.pass.Carrier.PutFunc(ctx, req)
}

// client that sends it.
func (s *sending) client() *http.Client {
	if s.pass.Carrier.Client != nil {
		return s.pass.Carrier.Client
	}
	return s.r.d.cfg.Client
}

// certificateRefused says that the upstream ended the handshake for the client's
// certificate; nil: it did not. With TLS 1.3 a client hears of that after it has sent
// its request, of which the server has read nothing (RFC 8446, 4.4.2.4).
func (s *sending) certificateRefused(err error) error {
	var remote *net.OpError
	if s.pass.Carrier.Client == nil || !errors.As(err, &remote) || remote.Op != "remote error" {
		return nil
	}
	if why := remote.Err.Error(); strings.Contains(why, "certificate") || strings.Contains(why, "access denied") {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s does not take the certificate that was issued for the action: %s; its operator looks which authority it trusts", s.r.d.cfg.Name, why)
	}
	return nil
}
