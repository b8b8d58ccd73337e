package brokerlink

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
	"bivouac/server/capability"
)

// Config of a Link.
type Config struct {
	// Address of the broker's listener, host:port.
	Address string
	// Dir holds the server's key, certificate and the root certificate.
	Dir string
	// Code of bivouac-broker server-code; needed at the first start.
	Code string
	// Names under which runners and brokers reach this server.
	Names []string
	// Network gives sockets; its zero value is the machine's own.
	Network link.Network
	// Vouch is a second proof of both sides, beside the certificates under the root; nil:
	// none is asked for.
	Vouch link.Vouch
	// Signer gets the certified hourly keys.
	Signer *capability.Signer
	Log    *slog.Logger
}

// Link is the server's connection to its broker. It is safe for concurrent use.
type Link struct {
	cfg  Config
	key  ed25519.PrivateKey
	code *identity.Code
	// lapsed are credentials whose certificate ended while the server was off:
	// the root is still pinned, and the enrolled key proves itself.
	lapsed *credentials

	enrolled chan struct{} // closed when there are credentials
	signing  *signing

	mu    sync.Mutex // guards below; never held over I/O
	creds *credentials
	conn  *link.Client
	peers *peers
}

// peers are the broker's services over one connection.
type peers struct {
	broker    brokerv1connect.BrokerServiceClient
	authority brokerv1connect.AuthorityServiceClient
	trust     brokerv1connect.TrustServiceClient
}

func (p *peers) brokerService() brokerv1connect.BrokerServiceClient       { return p.broker }
func (p *peers) authorityService() brokerv1connect.AuthorityServiceClient { return p.authority }
func (p *peers) trustService() brokerv1connect.TrustServiceClient         { return p.trust }

// maxAnswerBytes bounds one message of the broker.
const maxAnswerBytes = 16 << 20

// Open reads or makes the server's identity. It sends nothing.
func Open(c Config) (*Link, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Signer == nil {
		c.Signer = &capability.Signer{}
	}
	key, err := loadKey(c.Dir)
	if err != nil {
		return nil, err
	}
	earlier, err := loadStatements(c.Dir)
	if err != nil {
		return nil, err
	}
	l := &Link{cfg: c, key: key, enrolled: make(chan struct{}), signing: newSigning(c.Signer, c.Dir, earlier)}
	if c.Code != "" {
		code, err := identity.ParseCode(identity.CodeServer, c.Code)
		if err != nil {
			return nil, err
		}
		l.code = &code
	}
	creds, err := loadCertificate(c.Dir, key)
	if err != nil {
		return nil, err
	}
	switch {
	case creds != nil && time.Now().Before(creds.leaf.Leaf.NotAfter):
		return l, l.adopt(creds)
	case creds != nil:
		l.lapsed = creds
	case l.code == nil:
		return nil, NotEnrolled(l.cfg.Dir)
	}
	return l, nil
}

// NotEnrolled is why a server of this directory does not start without a code.
func NotEnrolled(dir string) error {
	return protocol.Errorf(protocol.CodeFailedPrecondition, "the server of %s is not enrolled at a broker: %s", dir, needsCode)
}

const needsCode = "run bivouac-broker server-code on the broker's machine, save its code to a file and start with --broker-code-file FILE"

// adopt makes credentials the current ones and opens the services under them.
func (l *Link) adopt(c *credentials) error {
	conn, err := link.NewClient(link.Config{
		Address:     l.cfg.Address,
		Trust:       link.Trust{Role: identity.RoleBroker, Root: c.root},
		Certificate: l.Certificate,
		Network:     l.cfg.Network,
		Vouch:       l.cfg.Vouch,
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.creds, l.conn, l.peers = c, conn, dialled(conn)
	close(l.enrolled)
	return nil
}

func dialled(conn *link.Client) *peers {
	opts := []connect.ClientOption{connect.WithReadMaxBytes(maxAnswerBytes)}
	return &peers{
		broker:    brokerv1connect.NewBrokerServiceClient(conn, conn.URL(), opts...),
		authority: brokerv1connect.NewAuthorityServiceClient(conn, conn.URL(), opts...),
		trust:     brokerv1connect.NewTrustServiceClient(conn, conn.URL(), opts...),
	}
}

// Run enrols when that is still to do, renews the certificate and keeps a
// certified signing key, until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	defer l.close()
	if err := l.runEnrol(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.runRenew(ctx) })
	g.Go(func() error { return l.runSign(ctx) })
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	g.Go(func() error { return conn.Run(ctx) }) // back to QUIC when UDP gets through
	g.Go(func() error { return conn.RunVouch(ctx) })
	return g.Wait()
}

func (l *Link) close() {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil {
		conn.Close() // nothing to lose
	}
}

// Enrolled is closed once the server has an identity; listeners wait for it.
func (l *Link) Enrolled() <-chan struct{} { return l.enrolled }

// Thumbprint of the server's TLS key: the presenter of the capabilities that it
// uses itself. It stays over renewals and restarts.
func (l *Link) Thumbprint() string {
	spki, err := x509.MarshalPKIXPublicKey(l.key.Public())
	if err != nil {
		panic(err) // an Ed25519 key always encodes
	}
	return identity.Thumbprint(spki)
}

// Certificate of the server, newest first; it is asked at every handshake.
func (l *Link) Certificate() (*tls.Certificate, error) {
	c, err := l.credentials()
	if err != nil {
		return nil, err
	}
	return &c.leaf, nil
}

// Root that everything of this deployment hangs from.
func (l *Link) Root() (*x509.Certificate, error) {
	c, err := l.credentials()
	if err != nil {
		return nil, err
	}
	return c.root, nil
}

func (l *Link) credentials() (*credentials, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.creds == nil {
		return nil, notEnrolled(l.cfg.Address)
	}
	return l.creds, nil
}

func (l *Link) services() (*peers, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers == nil {
		return nil, notEnrolled(l.cfg.Address)
	}
	return l.peers, nil
}

func notEnrolled(address string) error {
	return protocol.Errorf(protocol.CodeUnavailable,
		"the server is not enrolled at the broker %s yet; check that bivouac-broker runs there", address)
}
