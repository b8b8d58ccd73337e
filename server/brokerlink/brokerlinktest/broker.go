package brokerlinktest

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// Backend answers models and tools. Fields left out answer as unavailable.
type Backend struct {
	CallModel func(ctx context.Context, req *brokerv1.CallModelRequest, delta func(string) error) (*runtimev1.ModelDone, error)
	Invoke    func(ctx context.Context, req *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error)
	// Lookup is what the call log knows of every action. Default: absent.
	Lookup brokerv1.CallState
	// Findings of its doctor.
	Findings []*brokerv1.Finding
	// Tenants that its file names.
	Tenants []*brokerv1.NamedTenant
}

// Broker serves on what Serve is given.
type Broker struct {
	Root    *Root
	Backend Backend
	// CertTTL of what it certifies. Default 24 h.
	CertTTL time.Duration
	Boot    string

	leaf *tls.Certificate

	mu          sync.Mutex        // guards below
	codes       map[string]string // hash of a code → thumbprint that used it
	servers     int
	renewals    int
	credentials map[string]map[string][]byte // tenant → name → ciphertext
	grants      map[string]*brokerv1.Grant
	receipts    int
	feed        feedState
	noHeads     error // why no head of a ledger is signed; nil: every one is
	noRunners   error // why no runner is certified
}

// RefuseHeads of ledgers from now on; nil: every one is signed again.
func (b *Broker) RefuseHeads(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noHeads = why
}

// RefuseRunners their certificates from now on; nil: each gets one again.
func (b *Broker) RefuseRunners(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noRunners = why
}

func (b *Broker) refusals() (heads, runners error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.noHeads, b.noRunners
}

// New makes a broker with a fresh root.
func New() (*Broker, error) {
	root, err := NewRoot()
	if err != nil {
		return nil, err
	}
	return Under(root)
}

// Under makes another broker under a root.
func Under(root *Root) (*Broker, error) {
	leaf, err := root.Leaf(identity.RoleBroker, "brk_test", "", 10*365*24*time.Hour)
	if err != nil {
		return nil, err
	}
	return &Broker{
		Root: root, leaf: leaf, Boot: "boot-1", codes: map[string]string{},
		credentials: map[string]map[string][]byte{}, grants: map[string]*brokerv1.Grant{},
		feed: feedState{floors: map[string]int64{}},
	}, nil
}

// Fingerprint of its root.
func (b *Broker) Fingerprint() string { return identity.Fingerprint(b.Root.Cert) }

// ServerCode is what bivouac-broker server-code prints.
func (b *Broker) ServerCode() (string, error) {
	code, err := identity.NewCode(identity.CodeServer, b.Fingerprint(), rand.Reader)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.codes[string(code.Hash())] = ""
	return code.Reveal(), nil
}

// Serve answers until ctx ends.
func (b *Broker) Serve(ctx context.Context, packets net.PacketConn, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle(brokerv1connect.NewBrokerServiceHandler(brokerService{b}))
	mux.Handle(brokerv1connect.NewAuthorityServiceHandler(authorityService{b}))
	mux.Handle(brokerv1connect.NewTrustServiceHandler(trustService{b}))
	s, err := link.NewServer(link.ServerConfig{
		Handler: mux, Root: b.Root.Cert, Grace: time.Second, Log: slog.New(slog.DiscardHandler),
		Certificate: func() (*tls.Certificate, error) { return b.leaf, nil },
	})
	if err != nil {
		return err
	}
	return s.Serve(ctx, packets, listener)
}

// Counts of what servers asked for.
func (b *Broker) Counts() (servers, renewals, receipts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.servers, b.renewals, b.receipts
}

// Sealed is the ciphertext of a tenant's credential; nil when there is none.
func (b *Broker) Sealed(tenant, name string) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.credentials[tenant][name]
}

// onlyServers refuses every other role, as the real broker does.
func onlyServers(ctx context.Context) (identity.Peer, error) {
	p, err := link.PeerFrom(ctx)
	if err == nil && p.Role != identity.RoleServer {
		err = protocol.Errorf(protocol.CodePermissionDenied, "only a server may")
	}
	if err != nil {
		return p, protocol.ToConnect(err)
	}
	return p, nil
}
