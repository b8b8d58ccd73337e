package ssh

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	wire "golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/gateway"
)

// signInFor bounds the way from the connection to a session.
const signInFor = 20 * time.Second

// Session is a connection to a host that took the certificate, for one command.
type Session struct {
	r       *Run
	conn    wire.Conn
	channel wire.Channel
	asks    <-chan *wire.Request // of the host, on the channel
	beside  errgroup.Group       // refuses what the host asks for beside it
	stop    func() bool
}

// Open signs in. Whatever goes wrong here, nothing was run: every error is a
// gateway.NotSent. The context's end closes the connection, now and later.
func (r *Run) Open(ctx context.Context, signer wire.Signer) (*Session, error) {
	if signer == nil {
		return nil, &gateway.NotSent{Err: protocol.Errorf(protocol.CodePolicyDenied, "the credential of destination %s is no certificate of SSH: nothing was run", r.e.cfg.Name)}
	}
	within, cancel := context.WithTimeoutCause(ctx, signInFor, protocol.Errorf(protocol.CodeUnavailable, "destination %s did not let anybody sign in within %s", r.e.cfg.Name, signInFor))
	defer cancel()
	s, err := r.open(within, signer)
	if err != nil {
		if within.Err() != nil {
			err = context.Cause(within)
		}
		return nil, &gateway.NotSent{Err: err}
	}
	s.stop = context.AfterFunc(ctx, s.end)
	return s, nil
}

func (r *Run) open(ctx context.Context, signer wire.Signer) (*Session, error) {
	raw, err := egress.Dial(ctx, r.e.cfg.Reach)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() }) // it fails what waits on it
	defer stop()
	s := &Session{r: r}
	if err := s.signIn(raw, signer); err != nil {
		raw.Close() // nothing was asked
		return nil, err
	}
	s.channel, s.asks, err = s.conn.OpenChannel("session", nil)
	if err != nil {
		s.Close()
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s let user %s in, and opens no session: %s; its operator looks into MaxSessions of sshd_config", r.e.cfg.Name, r.e.cfg.User, heard(err.Error()))
	}
	return s, nil
}

// signIn does so, and has everything refused that the host asks for by itself: a
// channel to an agent, forwarded connections, global requests.
func (s *Session) signIn(raw net.Conn, signer wire.Signer) error {
	a := &asked{e: s.r.e, signer: signer}
	conn, channels, requests, err := wire.NewClientConn(raw, egress.HostPort(s.r.e.cfg.Reach.Base), a.config())
	if err != nil {
		return a.refused(err)
	}
	s.conn = conn
	s.beside.Go(func() error { wire.DiscardRequests(requests); return nil })
	s.beside.Go(func() error {
		for c := range channels {
			_ = c.Reject(wire.Prohibited, "nothing is forwarded") // the host went
		}
		return nil
	})
	if !a.shown {
		s.Close()
		return a.anybody()
	}
	return nil
}

// errReached ends a look at a host, before anybody signs in.
var errReached = errors.New("it was looked at alone")

// Reach asks the host for its key, and signs in as nobody.
func (e *Endpoint) Reach(ctx context.Context) error {
	raw, err := egress.Dial(ctx, e.cfg.Reach)
	if err != nil {
		return err
	}
	defer raw.Close() // nothing was asked
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	a := &asked{e: e}
	cfg := a.config()
	cfg.AuthCallback = func(*wire.ClientAuthContext) (wire.AuthMethod, error) { return nil, errReached }
	_, _, _, err = wire.NewClientConn(raw, egress.HostPort(e.cfg.Reach.Base), cfg)
	switch {
	case errors.Is(err, errReached):
		return nil
	case err == nil:
		return a.anybody()
	case ctx.Err() != nil:
		return protocol.Errorf(protocol.CodeUnavailable, "destination %s did not show its key in time", e.cfg.Name)
	}
	return a.refused(err)
}

// end the connection.
func (s *Session) end() { _ = s.conn.Close() } // it is over either way

// Close the session, with everything of it.
func (s *Session) Close() {
	if s.stop != nil {
		s.stop()
	}
	s.end()
	_ = s.beside.Wait() // they return nothing
}

// asked is what a host was shown, and what it said no to.
type asked struct {
	e      *Endpoint
	signer wire.Signer
	shown  bool
	host   error // of the host's key
	method error // of how it wants to be signed in to
}

func (a *asked) config() *wire.ClientConfig {
	return &wire.ClientConfig{
		User: a.e.cfg.User, HostKeyAlgorithms: a.e.hostAlgorithms(), ClientVersion: "SSH-2.0-bivouac",
		HostKeyCallback: func(address string, remote net.Addr, key wire.PublicKey) error {
			a.host = a.e.checkHost(address, remote, key)
			return a.host
		},
		AuthCallback: a.next,
	}
}

// next is the certificate, once. No host gets a password, or an answer to a question.
func (a *asked) next(c *wire.ClientAuthContext) (wire.AuthMethod, error) {
	if !a.shown && slices.Contains(c.AllowedMethods, "publickey") {
		a.shown = true
		return wire.PublicKeys(a.signer), nil
	}
	name, user := a.e.cfg.Name, a.e.cfg.User
	wants := heard(strings.Join(c.AllowedMethods, ", "))
	switch {
	case slices.Contains(c.PartialSuccessMethods, "publickey"):
		a.method = protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s takes the certificate of user %s and wants more (%s), which nobody gives: its operator takes AuthenticationMethods publickey for the user in sshd_config", name, user, wants)
	case !a.shown:
		a.method = protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s lets user %s sign in by %s alone, and takes no certificate: its operator sets PubkeyAuthentication yes and TrustedUserCAKeys in sshd_config", name, user, wants)
	default:
		a.method = protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s does not take the certificate that was issued for the action, as user %s (it goes on asking for: %s): its operator looks whether TrustedUserCAKeys has the engine's key, whether AuthorizedPrincipalsFile or the user's name has one of the principals, and at both clocks (journalctl -u ssh)", name, user, wants)
	}
	return nil, a.method
}

// anybody is let in: then whose action it is would not be known there.
func (a *asked) anybody() error {
	return protocol.Errorf(protocol.CodePolicyDenied, "destination %s lets user %s in without a certificate, so it would not know whose action it is: nothing was run; its operator looks into sshd_config", a.e.cfg.Name, a.e.cfg.User)
}

// refused says why there is no connection.
func (a *asked) refused(err error) error {
	var algorithms *wire.AlgorithmNegotiationError
	switch {
	case a.host != nil:
		return a.host
	case a.method != nil:
		return a.method
	case errors.As(err, &algorithms):
		return protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s and the broker have no %s in common: the host offers %s; its operator updates it", a.e.cfg.Name, algorithms.What, heard(strings.Join(algorithms.RequestedAlgorithms, ", ")))
	case a.shown:
		return protocol.Errorf(protocol.CodeUnavailable, "destination %s ended the connection while user %s signed in: nothing was run", a.e.cfg.Name, a.e.cfg.User)
	}
	return protocol.Errorf(protocol.CodeUnavailable, "destination %s does not speak SSH, or ended the connection before anybody signed in: nothing was run", a.e.cfg.Name)
}
