package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"

	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/secret"
)

// Carrier takes a credential along that is no value of one header: a signature of the
// request, a user and a password in two headers, a certificate of the connection.
type Carrier struct {
	// PutFunc makes a request one that carries it, each time before it leaves.
	PutFunc func(ctx context.Context, r *http.Request) error
	// HiddenFunc is what of a request that PutFunc has made answers are redacted of; nil:
	// nothing beside the credential.
	HiddenFunc func(r *http.Request) []secret.Value
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
	if err := s.pass.Carrier.PutFunc(ctx, req); err != nil {
		return err
	}
	if hidden := s.pass.Carrier.HiddenFunc; hidden != nil {
		s.pass.Before = append(slices.Clip(s.pass.Before), hidden(req)...)
	}
	return nil
}

// client that sends it.
func (s *sending) client() *http.Client {
	if s.pass.Carrier.Client != nil {
		return s.pass.Carrier.Client
	}
	return s.r.d.cfg.Client
}

// certificateRefused says that the upstream ended the connection for the client's
// certificate; nil: it did not. Only where that came before a byte of the request was
// written is it known that nothing happened: whoever stands before an upstream may end
// a connection for an expired certificate after the request was done. INV-5.
func (s *sending) certificateRefused(err error) error {
	var remote *net.OpError
	if s.pass.Carrier.Client == nil || !errors.As(err, &remote) || remote.Op != "remote error" {
		return nil
	}
	why := remote.Err.Error()
	if !strings.Contains(why, "certificate") && !strings.Contains(why, "access denied") {
		return nil
	}
	var before *egress.Refused
	if errors.As(err, &before) {
		return &NotSent{protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s does not take the certificate that was issued for the action: %s; its operator looks which authority it trusts", s.r.d.cfg.Name, why)}
	}
	return protocol.Errorf(protocol.CodeOutcomeUnknown, "destination %s ended the connection for the certificate that was issued for the action: %s; the request had left by then, and may have been done; its operator looks which authority it trusts", s.r.d.cfg.Name, why)
}
