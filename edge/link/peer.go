package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
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
	// vouched is the newest second proof of it; nil: none came.
	vouched atomic.Pointer[Vouched]
}

type seatKey struct{}

func withSeat(ctx context.Context) context.Context {
	return context.WithValue(ctx, seatKey{}, new(seat))
}

// authenticator puts the caller into the context of next, and refuses a certificate that
// is neither ours nor self-signed, and a role that must be vouched for and is not.
type authenticator struct {
	root  *x509.Certificate
	vouch Vouch           // nil: certificates are all
	from  []identity.Role // who must be vouched for
	next  http.Handler
}

func (a *authenticator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s, ok := r.Context().Value(seatKey{}).(*seat)
	if !ok || r.TLS == nil {
		http.Error(w, "no TLS connection", http.StatusInternalServerError)
		return
	}
	if len(r.TLS.PeerCertificates) == 0 {
		a.next.ServeHTTP(w, r)
		return
	}
	s.once.Do(func() { s.judge(r.TLS, a.root) })
	err := s.err
	if err == nil && time.Now().After(s.until) {
		err = protocol.Errorf(protocol.CodeUnauthenticated, "the certificate of this connection has ended: connect again with the renewed one")
	}
	ctx := WithPeer(r.Context(), s.peer)
	if err == nil && a.vouch != nil {
		if r.URL.Path == vouchPath {
			a.vouching(w, r, s)
			return
		}
		if slices.Contains(a.from, s.peer.Role) {
			var v Vouched
			v, err = a.vouchedFor(s, r)
			ctx = WithVouched(ctx, v)
		}
	}
	if err != nil {
		_ = connect.NewErrorWriter().Write(w, r, protocol.ToConnect(err)) // the peer went
		return
	}
	a.next.ServeHTTP(w, r.WithContext(ctx))
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
