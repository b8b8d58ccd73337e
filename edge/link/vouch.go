package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"time"

	"bivouac/edge/protocol"
)

// Vouch is a second proof of who is at both ends of a connection. It is asked for beside
// the certificates under the pinned root, which still say who may do what: it can refuse a
// connection that they admit, and admits none that they refuse. Both sides prove over the
// connection's own binding, so that a proof is worth nothing on another one.
type Vouch interface {
	// Show proves this side.
	Show(Binding) ([]byte, error)
	// Check judges what the other side showed; nil is nothing, and the error says what
	// mends that. What it takes holds.
	Check(Binding, []byte) (Vouched, error)
	// Changed is closed once this side shows, or believes, something else than before.
	Changed() <-chan struct{}
}

// Vouched is what the other side has proven. It is safe for concurrent use.
type Vouched interface {
	// Name of the other side, as the proof has it.
	Name() string
	// Holds refuses a proof that has ended, or is not believed any more. It is asked for
	// every request.
	Holds() error
	// Until it holds at most.
	Until() time.Time
}

// Binding is one connection, as both its ends know it and nobody else does.
type Binding struct {
	// Key is exported from the handshake (RFC 8446, 7.5).
	Key [32]byte
	// Dialler shows it, and not who was dialled.
	Dialler bool
}

// vouchPath is where proofs are exchanged: both, in one request of who dialled.
const (
	vouchPath   = "/bivouac.link/vouch"
	vouchLabel  = "EXPORTER-bivouac-vouch"
	maxProof    = 64 << 10
	vouchIn     = 10 * time.Second
	vouchAgain  = time.Second
	vouchLatest = time.Minute
)

func bindingOf(state *tls.ConnectionState, dialler bool) (Binding, error) {
	b := Binding{Dialler: dialler}
	key, err := state.ExportKeyingMaterial(vouchLabel, nil, len(b.Key))
	copy(b.Key[:], key)
	return b, err
}

type vouchedKey struct{}

// VouchedFrom is what the caller of a request has proven beside its certificate; nil where
// nothing was asked for. It is the newest on the request's connection, also while the
// request runs: what is shown anew in time ends nothing.
func VouchedFrom(ctx context.Context) Vouched {
	v, _ := ctx.Value(vouchedKey{}).(Vouched)
	return v
}

// WithVouched sets it, for handlers that are reached without a Server.
func WithVouched(ctx context.Context, v Vouched) context.Context {
	return context.WithValue(ctx, vouchedKey{}, v)
}

// prove exchanges proofs over one connection, first or anew. What was proven before stays
// where it fails.
func (c *Client) prove(ctx context.Context, on *conn) error {
	if c.cfg.Vouch == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, vouchIn)
	defer cancel()
	state, err := on.tls(ctx, c.URL())
	if err != nil {
		return err
	}
	mine, err := bindingOf(state, true)
	if err != nil {
		return err
	}
	proof, err := c.cfg.Vouch.Show(mine)
	if err != nil {
		return err
	}
	theirs, err := on.exchange(ctx, http.MethodPost, c.URL()+vouchPath, proof)
	if err != nil {
		return err
	}
	shown := theirs.body
	if theirs.status == http.StatusNotFound { // it knows of no second proof
		shown = nil
	} else if theirs.status != http.StatusOK {
		return protocol.Errorf(theirs.code(), "%s at %s: %s", roleName(c.cfg.Trust.Role), c.cfg.Address, bytes.TrimSpace(theirs.body))
	}
	v, err := c.cfg.Vouch.Check(Binding{Key: mine.Key}, shown)
	if err == nil {
		err = v.Holds() // what does not is refused, and not dialled again and again
	}
	if err != nil {
		return err
	}
	on.vouched.Store(&v)
	return nil
}

// RunVouch keeps the live connection proven until ctx ends: anew when this side shows
// something else, and well before the other side's proof ends. Requests go on meanwhile.
func (c *Client) RunVouch(ctx context.Context) error {
	v := c.cfg.Vouch
	if v == nil {
		return nil
	}
	for ctx.Err() == nil {
		changed, on := v.Changed(), c.live()
		wait := vouchLatest
		if on != nil {
			if err := c.prove(ctx, on); err != nil {
				wait = vouchAgain // what was proven counts as long as it holds
			} else if p := on.vouched.Load(); p != nil {
				wait = max(vouchAgain, min(wait, time.Until((*p).Until())/2))
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-t.C:
		}
		t.Stop()
	}
	return nil
}

// live connection; nil: there is none.
func (c *Client) live() *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil || !c.current.alive() {
		return nil
	}
	return c.current
}

// answered is what came of one small request.
type answered struct {
	status int
	header http.Header
	body   []byte
	tls    *tls.ConnectionState
}

func (a answered) code() protocol.Code {
	if code := protocol.Code(a.header.Get(codeHeader)); code == protocol.CodeUnavailable {
		return code
	}
	return protocol.CodeUnauthenticated
}

// exchange sends one small request over this very connection.
func (c *conn) exchange(ctx context.Context, method, url string, body []byte) (answered, error) {
	if !c.begin() {
		return answered{}, protocol.Errorf(protocol.CodeUnavailable, "the connection ended")
	}
	defer c.end()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return answered{}, err
	}
	resp, err := c.roundTrip(req)
	if err != nil {
		return answered{}, protocol.Errorf(protocol.CodeUnavailable, "the second proof was not answered: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxProof))
	return answered{resp.StatusCode, resp.Header, text, resp.TLS}, err
}

// tls is the state of the connection's handshake. Over TCP an answer has it.
func (c *conn) tls(ctx context.Context, url string) (*tls.ConnectionState, error) {
	if c.state != nil {
		return c.state(), nil
	}
	a, err := c.exchange(ctx, http.MethodGet, url+vouchPath, nil)
	if err == nil && a.tls == nil {
		err = protocol.Errorf(protocol.CodeUnavailable, "the connection has no TLS")
	}
	return a.tls, err
}

// holds what the other side has proven on a connection of a client that asks for it.
func (c *conn) holds() bool {
	v := c.vouched.Load()
	return v == nil || (*v).Holds() == nil
}

// vouching is a listener's side of it.
func (a *authenticator) vouching(w http.ResponseWriter, r *http.Request, s *seat) {
	refuse := func(err error) {
		status := http.StatusForbidden
		if protocol.CodeOf(err) == protocol.CodeUnavailable {
			status = http.StatusServiceUnavailable
		}
		w.Header().Set(codeHeader, string(protocol.CodeOf(err)))
		http.Error(w, err.Error(), status)
	}
	if r.Method != http.MethodPost { // who dialled looks at the connection
		w.WriteHeader(http.StatusNoContent)
		return
	}
	theirs, err := bindingOf(r.TLS, true)
	if err != nil {
		refuse(err)
		return
	}
	shown, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxProof))
	if err != nil {
		refuse(protocol.Errorf(protocol.CodeInvalidArgument, "the proof cannot be read: %w", err))
		return
	}
	v, err := a.vouch.Check(theirs, shown)
	if err != nil {
		refuse(err)
		return
	}
	proof, err := a.vouch.Show(Binding{Key: theirs.Key})
	if err != nil {
		refuse(err)
		return
	}
	s.vouched.Store(&v)
	_, _ = w.Write(proof) // the peer went
}

// vouchedFor is what a caller has proven beside its certificate, where its role must.
func (a *authenticator) vouchedFor(s *seat, r *http.Request) (Vouched, error) {
	v := s.vouched.Load()
	if v == nil {
		b, err := bindingOf(r.TLS, true)
		if err == nil {
			_, err = a.vouch.Check(b, nil)
		}
		if err == nil {
			err = protocol.Errorf(protocol.CodeUnauthenticated, "the peer has proven nothing beside its certificate")
		}
		return nil, err
	}
	return seated{s}, (*v).Holds()
}

// seated is the newest proof on a connection that has one.
type seated struct{ *seat }

func (s seated) newest() Vouched { return *s.vouched.Load() }

func (s seated) Name() string     { return s.newest().Name() }
func (s seated) Holds() error     { return s.newest().Holds() }
func (s seated) Until() time.Time { return s.newest().Until() }
