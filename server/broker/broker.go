package broker

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/lease"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/server/broker/budget"
	"bivouac/server/broker/calllog"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/feed"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/oauth"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
	"bivouac/server/broker/witness"
	"bivouac/server/intercept"
)

// sweepEvery is how often open flows are held against the feed's age.
const sweepEvery = 250 * time.Millisecond

// Ports are what a broker stands on.
type Ports struct {
	Authority Authority
	Root      Root
	Paths     Paths
	// CallLog, SpendFile and SliceFile are file names; without the last two the
	// hour's spend and the draws of slices are kept in memory.
	CallLog, SpendFile, SliceFile string
	// WitnessDir keeps the last heads of ledgers; empty: memory only.
	WitnessDir string
	// ConfigFile whose caps are followed while the broker runs; empty: none are.
	ConfigFile string
	// ResetKey for QUIC; see link.ServerConfig.
	ResetKey *[32]byte
	// Feed sockets and egress connections; zero values are the machine's own.
	Feed   link.Network
	Egress egress.Network
	// Elapsed counts suspend. Default lease.Boottime.
	Elapsed lease.Elapsed
	// Sandbox runs MCP servers that are commands; nil: a configuration with one is
	// refused.
	Sandbox sandbox.Backend
	// Own intentions say which server may call this broker; nil: its certificate is all.
	Own *Own
	// Vouch proves this broker to servers, and servers to it, beside the certificates under
	// the root; nil: those are all.
	Vouch link.Vouch
	// Meter counts how requests end; nil: nobody does.
	Meter Meter
	Log   *slog.Logger
}

// Broker is one running broker. It is safe for concurrent use.
type Broker struct {
	cfg   Config
	ports Ports
	log   *slog.Logger
	boot  string

	feed         *feed.Feed
	follower     *feed.Follower
	ledger       *budget.Ledger
	spend        *budget.Spend
	calls        *calllog.Log
	witness      *witness.Witness
	flows        *flows
	ended        *ended
	debts        *debts
	moved        *moved
	leaf         *leaf
	caps         atomic.Pointer[Caps] // SetCaps replaces them
	retired      *retired
	tokens       *oauth.Tokens
	keyless      *keyless
	routes       map[string]*route
	destinations map[string]*outlet
	issuer       Issuer // nil where no credential is issued
}

// New makes a broker and opens its files; it starts nothing.
func New(cfg Config, p Ports) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if p.Authority == nil || p.Root == nil || p.Paths == nil || p.CallLog == "" {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "a broker needs an authority, a root, paths and a call log")
	}
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Elapsed == nil {
		p.Elapsed = lease.Boottime
	}
	issuer, _ := p.Authority.(Issuer)
	if n := len(cfg.issued()); n > 0 && issuer == nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%d credential(s) are issued by engines, and what holds the grants has none", n)
	}
	rootKey, ok := p.Root.Root().PublicKey.(ed25519.PublicKey)
	if !ok {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "the root key is not Ed25519")
	}
	b := &Broker{
		cfg: cfg.withDefaults(), ports: p, log: p.Log, boot: rand.Text(), flows: newFlows(), ended: newEnded(), debts: newDebts(), moved: newMoved(p.Elapsed),
		feed: feed.New(rootKey, p.Elapsed, p.Log), retired: newRetired(), keyless: newKeyless(), routes: map[string]*route{}, destinations: map[string]*outlet{}, issuer: issuer,
	}
	b.caps.Store(b.cfg.Caps)
	if names := cfg.Commands(); len(names) > 0 && p.Sandbox == nil {
		return nil, cfg.Confined(context.Background(), nil)
	}
	if err := b.cfg.provable(); err != nil {
		return nil, err
	}
	if err := b.open(); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *Broker) open() (err error) {
	for _, m := range b.cfg.Models {
		if b.routes[m.Name], err = b.cfg.openRoute(m, b.ports.Egress); err != nil {
			return err
		}
	}
	for _, d := range b.cfg.Destinations {
		if b.destinations[d.Name], err = b.cfg.openDestination(d, b.ports); err != nil {
			return err
		}
	}
	if b.tokens, err = b.cfg.openTokens(b.ports); err != nil {
		return err
	}
	if b.leaf, err = newLeaf(b.ports.Root); err != nil {
		return err
	}
	b.follower, err = feed.Follow(b.feed, feed.Config{
		Addresses: b.cfg.Servers, Root: b.ports.Root.Root(), Certificate: b.leaf.certificate, Network: b.ports.Feed, Vouch: b.ports.Vouch,
		BootNonce: b.boot, OnChange: b.feedChanged, Beside: b.tellEnded, Log: b.log,
	})
	if err != nil {
		return err
	}
	if b.spend, err = budget.NewSpend(b.cfg.Caps.budgetCaps(), b.ports.SpendFile, time.Now); err != nil {
		return err
	}
	b.ledger = budget.New(b.boot, b.ports.Elapsed)
	if b.ports.SliceFile != "" {
		b.ledger, err = budget.Open(budget.Config{Boot: b.boot, Path: b.ports.SliceFile, Host: hostBoot(), Elapsed: b.ports.Elapsed})
		if err != nil {
			return err
		}
	}
	if b.witness, err = witness.Open(b.ports.WitnessDir, b.log); err != nil {
		return err
	}
	b.calls, err = calllog.Open(calllog.Config{Path: b.ports.CallLog})
	return err
}

// hostBoot is the running kernel's boot id; empty where there is none.
func hostBoot() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// Feed of this broker: a simulation drives it without a network.
func (b *Broker) Feed() *feed.Feed { return b.feed }

// Caps in force.
func (b *Broker) Caps() *Caps { return b.caps.Load() }

// SetCaps replaces the caps of the broker's own file, for what comes and for what
// is open: nothing else sets them, and no server can. What was spent in the last
// hour stays spent.
func (b *Broker) SetCaps(c *Caps) error {
	cfg := b.cfg
	cfg.Caps = c
	if err := cfg.Validate(); err != nil {
		return err
	}
	c = cfg.withDefaults().Caps
	b.caps.Store(c)
	b.spend.SetCaps(c.budgetCaps())
	b.Sweep()
	return nil
}

// BootNonce is new at every start; slices name it.
func (b *Broker) BootNonce() string { return b.boot }

// Sweep closes the open flows that may not go on: revoked, no longer allowed by
// paths, or without a feed for longer than the authority ttl. INV-13.
func (b *Broker) Sweep() (closed int) { return b.sweep(b.still) }

func (b *Broker) sweep(verdict func(*request) error) (closed int) {
	closed, why := b.flows.judge(verdict)
	if closed > 0 {
		b.log.Info("flows closed", "count", closed, "one_because", why)
	}
	return closed
}

// feedChanged holds what is open, and what was revoked, against what the feed says.
func (b *Broker) feedChanged() {
	b.Sweep()
	b.debts.bell.Ring()
}

// Run serves on packets and listener, follows the feed and watches the paths
// until ctx ends. Either of packets and listener may be nil; both are closed.
func (b *Broker) Run(ctx context.Context, packets net.PacketConn, listener net.Listener) error {
	server, err := link.NewServer(link.ServerConfig{
		Handler: b.Handler(), Root: b.ports.Root.Root(), Certificate: b.leaf.certificate, ResetKey: b.ports.ResetKey, Log: b.log,
		Vouch: b.ports.Vouch, VouchFrom: []identity.Role{identity.RoleServer, identity.RoleNone},
	})
	if err != nil {
		return errors.Join(err, b.close())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Serve(ctx, packets, listener) })
	g.Go(func() error { return b.follower.Run(ctx) })
	g.Go(func() error { return b.ports.Authority.Run(ctx, b.grantEnded) })
	g.Go(func() error { return b.runDebts(ctx) })
	g.Go(func() error { return b.tokens.Run(ctx) })
	g.Go(func() error { return b.ports.Paths.Run(ctx, func() { b.Sweep() }) })
	g.Go(func() error { return b.runSweep(ctx) })
	g.Go(func() error { return b.runCaps(ctx) })
	return errors.Join(g.Wait(), b.close())
}

func (b *Broker) runSweep(ctx context.Context) error {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			// What still runs is asked to end, so that a stop takes seconds.
			b.flows.judge(func(*request) error {
				return protocol.Errorf(protocol.CodeUnavailable, "the broker is stopping")
			})
			return nil
		case <-t.C:
			b.Sweep()
		}
	}
}

func (b *Broker) close() error {
	for _, r := range b.routes {
		r.close()
	}
	for _, d := range b.destinations {
		d.close()
	}
	return errors.Join(b.ledger.Stop(), b.calls.Close())
}

// Handler answers the three services. Callers come from link.PeerFrom.
func (b *Broker) Handler() http.Handler {
	mux := http.NewServeMux()
	options := func() connect.HandlerOption {
		return connect.WithHandlerOptions(intercept.Options(gateway.MaxTimeout+revokeWait, metered{b.ports.Meter}, intercept.Guard(b.admitCall))...)
	}
	mux.Handle(brokerv1connect.NewBrokerServiceHandler(brokerService{b}, options()))
	mux.Handle(brokerv1connect.NewAuthorityServiceHandler(authorityService{b}, options()))
	mux.Handle(brokerv1connect.NewTrustServiceHandler(trustService{b}, options()))
	mux.HandleFunc(protocol.EgressPath, b.serveEgress)
	return intercept.Handler(b.log, mux)
}
