package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"bivouac/edge/protocol"
)

// Network is where connections come from. Nil members mean the machine's own;
// tests in virtual time give theirs.
type Network struct {
	// Resolve finds the addresses of a host name.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Dial opens a stream to an address that was checked.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
}

func (n Network) withDefaults() Network {
	if n.Resolve == nil {
		n.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if n.Dial == nil {
		n.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", to.String())
		}
	}
	return n
}

// Config of one destination's client.
type Config struct {
	// Name of the destination or route, for errors.
	Name string
	Base *url.URL
	// AllowPrivate admits loopback and private addresses. A link-local or
	// metadata address is reached only when Base names it literally.
	AllowPrivate bool
	// CA certificates instead of the machine's; PEM.
	CA      []byte
	Network Network
	// HeaderTimeout bounds the wait for an answer's beginning. Zero: none.
	HeaderTimeout time.Duration
	// Certificate is shown to the destination, on a connection for one request. A
	// destination that does not ask for it gets no request. Nil: none.
	Certificate *tls.Certificate
}

// NewClient makes the HTTP client of one destination. Only its own host and
// port are ever dialled, and redirects come back as they are.
func NewClient(cfg Config) (*http.Client, error) {
	roots, err := cfg.roots()
	if err != nil {
		return nil, err
	}
	g := &guard{cfg: cfg, network: cfg.Network.withDefaults()}
	wire := &http.Transport{
		Proxy:                  nil, // an environment variable is no policy
		DialContext:            g.dial,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		TLSHandshakeTimeout:    handshakeTimeout,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        90 * time.Second,
		ResponseHeaderTimeout:  cfg.HeaderTimeout,
		MaxResponseHeaderBytes: 64 << 10,
	}
	if cfg.Certificate != nil {
		wire.ForceAttemptHTTP2, wire.DisableKeepAlives, wire.DialTLSContext = false, true, g.dialMutual
	}
	return &http.Client{
		Transport:     transport{wire},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// transport says what mends a connection that proves nothing.
type transport struct{ *http.Transport }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.Transport.RoundTrip(r)
	return res, provable(err)
}

// provable adds to an error of a certificate that nobody known here has signed what lets
// it be proven.
func provable(err error) error {
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return fmt.Errorf("%w: where it has an authority of its own, name the file of that as ca_file in its block of broker.hcl", err)
	}
	return err
}

func (c Config) roots() (*x509.CertPool, error) {
	if len(c.CA) == 0 {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(c.CA) {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%s: its CA file holds no certificate in PEM form", c.Name)
	}
	return pool, nil
}

// guard dials only what its destination allows.
type guard struct {
	cfg     Config
	network Network
}

// Refused marks an error that came before any byte was sent.
type Refused struct{ Err error }

func (r *Refused) Error() string { return r.Err.Error() }
func (r *Refused) Unwrap() error { return r.Err }

func (g *guard) dial(ctx context.Context, _, address string) (net.Conn, error) {
	conn, err := g.connect(ctx, address)
	if err != nil {
		return nil, &Refused{err}
	}
	return conn, nil
}

func (g *guard) connect(ctx context.Context, address string) (net.Conn, error) {
	if want := HostPort(g.cfg.Base); address != want {
		return nil, protocol.Errorf(protocol.CodePolicyDenied, "%s leads to %s, not to %s", g.cfg.Name, want, address)
	}
	host, port := g.cfg.Base.Hostname(), mustPort(g.cfg.Base)
	literal, isLiteral := parseLiteral(host)
	addrs := []netip.Addr{literal}
	if !isLiteral {
		var err error
		if addrs, err = g.network.Resolve(ctx, host); err != nil {
			return nil, protocol.Errorf(protocol.CodeUnavailable, "%s: the name %s cannot be resolved: %w", g.cfg.Name, host, err)
		}
	}
	var last error
	for _, a := range addrs {
		a = a.Unmap()
		if class := Classify(a); !g.allowed(class, isLiteral) {
			last = g.refusal(host, a, class)
			continue
		}
		conn, err := g.network.Dial(ctx, netip.AddrPortFrom(a, port))
		if err == nil {
			return conn, nil
		}
		last = protocol.Errorf(protocol.CodeUnavailable, "%s cannot be reached: %w", g.cfg.Name, err)
	}
	if last == nil {
		last = protocol.Errorf(protocol.CodeUnavailable, "%s: the name %s has no address", g.cfg.Name, host)
	}
	return nil, last
}

func (g *guard) allowed(class Class, literal bool) bool {
	switch class {
	case Public:
		return true
	case Loopback, Private:
		return g.cfg.AllowPrivate
	case LinkLocal:
		return g.cfg.AllowPrivate && literal
	}
	return false
}

func (g *guard) refusal(host string, a netip.Addr, class Class) error {
	mend := "name another address"
	switch class {
	case Loopback, Private:
		mend = "if that is meant, set allow_private = true in broker.hcl"
	case LinkLocal:
		mend = "if that is meant, name the address itself in broker.hcl and set allow_private = true"
	}
	return protocol.Errorf(protocol.CodePolicyDenied, "%s: %s is the %s address %s, which is refused; %s", g.cfg.Name, host, class, a, mend)
}

// HostPort of a URL, with the port of its scheme when it names none.
func HostPort(u *url.URL) string {
	return net.JoinHostPort(u.Hostname(), portText(u))
}

func portText(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	switch u.Scheme {
	case "http":
		return "80"
	case "ssh":
		return "22"
	}
	return "443"
}

// Port of a URL; zero: it names none that exists.
func Port(u *url.URL) uint16 { return mustPort(u) }

func mustPort(u *url.URL) uint16 {
	ap, err := netip.ParseAddrPort("0.0.0.0:" + portText(u))
	if err != nil {
		return 0 // refused by the dialler; CheckBase refuses it earlier
	}
	return ap.Port()
}

func parseLiteral(host string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(host)
	return a, err == nil
}

// CheckBase refuses base URLs that no destination may have.
func CheckBase(text string, allowPrivate bool) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%q is no URL", text)
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%q must begin with https:// or http://", text)
	case u.Hostname() == "" || mustPort(u) == 0:
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%q names no host, or no port that exists", text)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%q may hold no user, query or fragment: credentials are bound by name", u.Redacted())
	case u.Scheme == "http" && !allowPrivate:
		return nil, protocol.Errorf(protocol.CodeInvalidArgument,
			"%q would carry credentials in clear text: use https, or allow_private = true for an address of your own", text)
	}
	return u, nil
}
