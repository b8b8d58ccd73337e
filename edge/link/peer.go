package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
)

type peerKey struct{}

// PeerFrom is the proven caller of a request. A self-signed certificate is a
// peer with RoleNone; no certificate is an error.
func PeerFrom(ctx context.Context) (identity.Peer, error) {
	if p, ok := ctx.Value(peerKey{}).(identity.Peer); ok {
		return p, nil
	}
	return identity.Peer{}, protocol.Errorf(protocol.CodeUnauthenticated, "the connection has no client certificate")
}

// WithPeer sets the caller of a request, for handlers that are reached without
// a Server: in-process twins and tests.
func WithPeer(ctx context.Context, p identity.Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// seat keeps what one connection proved, judged at its first request.
type seat struct {
	once  sync.Once
	peer  identity.Peer
	until time.Time
	err   error
}

type seatKey struct{}

func withSeat(ctx context.Context) context.Context {
	return context.WithValue(ctx, seatKey{}, new(seat))
}

// authenticate puts the caller into the context of next, and refuses a
// certificate that is neither ours nor self-signed.
func authenticate(root *x509.Certificate, next http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, ok := r.Context().Value(seatKey{}).(*seat)
		if !ok || r.TLS == nil {
			http.Error(w, "no TLS connection", http.StatusInternalServerError)
			return
		}
		if len(r.TLS.PeerCertificates) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		s.once.Do(func() { s.judge(r.TLS, root) })
		err := s.err
		if err == nil && time.Now().After(s.until) {
			err = protocol.Errorf(protocol.CodeUnauthenticated, "the certificate of this connection has ended: connect again with the renewed one")
		}
		if err != nil {
			_ = refuse.Write(w, r, protocol.ToConnect(err)) // the peer went
			return
		}
		ctx := WithPeer(r.Context(), s.peer)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (s *seat) judge(state *tls.ConnectionState, root *x509.Certificate) {
	leaf := state.PeerCertificates[0]
	proven := *state
	chains, err := identity.VerifyChain(state.PeerCertificates, root, time.Now())
	switch {
	case err == nil:
		proven.VerifiedChains, s.until = chains, leaf.NotAfter
	case identity.IsSelfSigned(leaf):
		// The key is proven by the handshake, nothing else is. Its dates are its own.
		proven.VerifiedChains, s.until = nil, time.Now().Add(time.Hour)
	default:
		s.err = protocol.Errorf(protocol.CodeUnauthenticated, "the client certificate is not valid here: %w; enrol again", err)
		return
	}
	s.peer, s.err = identity.FromTLS(&proven)
}
