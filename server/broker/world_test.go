package broker_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"bivouac/consul/consultest"
	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
	"bivouac/edge/link/linktest"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/modeltest"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
	"bivouac/server/broker/scripted"
	"bivouac/server/broker/secret"
	"bivouac/server/capability"
)

const (
	brokerAddr = "10.0.0.1:7402"
	serverAddr = "10.0.0.2:7401"
	modelKey   = "sk-broker-test-0123456789"
	toolKey    = "tok-broker-test/9876543210+x"
)

// world is a broker with its server's feed, a scripted provider and a small tool
// server, all over real TLS and HTTP on a simulated network.
type world struct {
	t        *testing.T
	net      *linktest.Net
	dir      string
	keys     *keyring.Keyring
	outside  *outside // takes grants back behind the broker's back
	paths    *consultest.Memory
	pathsOf  broker.Paths // instead of paths, where they are a server's
	own      *broker.Own  // nil: the broker is no service
	here     link.Vouch   // of the broker, where it is in a mesh
	there    link.Vouch   // of its server
	broker   *broker.Broker
	scripted *scripted.Provider
	tools    *tools
	feed     *feedServer
	meter    broker.Meter
	log      *bytes.Buffer
	logMu    sync.Mutex

	serverCert, runnerCert *tls.Certificate
	signing                *capability.Key
	tenant                 protocol.TenantID
	grant                  authority.Grant
	sealed                 []byte
	dials                  map[netip.Addr]*linktest.Listener
	more                   string       // of broker.hcl
	uncertified            bool         // the server starts without a certified key
	resolved               atomic.Int64 // names that the broker asked for

	frontMu sync.Mutex
	front   []http.HandlerFunc // answer the next requests to the provider, one each
}

// next requests to the provider are answered by these.
func (w *world) next(h ...http.HandlerFunc) {
	w.frontMu.Lock()
	defer w.frontMu.Unlock()
	w.front = h
}

// ServeHTTP is the provider's door.
func (w *world) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.frontMu.Lock()
	h := http.HandlerFunc(w.scripted.ServeHTTP)
	if len(w.front) > 0 {
		h, w.front = w.front[0], w.front[1:]
	}
	w.frontMu.Unlock()
	h(out, r)
}

// Write makes world the log's end.
func (w *world) Write(p []byte) (int, error) {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.log.Write(p)
}

func (w *world) logged() string {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.log.String()
}

func newID[K protocol.Kind]() protocol.ID[K] { return protocol.NewID[K](time.Now(), rand.Reader) }

// inWorld runs test in virtual time with a broker whose feed is fresh.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	inWorldAfter(t, func(*world) {}, test)
}

// inWorldAfter does something with the keyring before anything runs: virtual time
// is cheap while nothing ticks.
func inWorldAfter(t *testing.T, before func(w *world), test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: linktest.New(time.Millisecond), log: &bytes.Buffer{}, tenant: newID[protocol.TenantKind](), paths: consultest.NewMemory()}
		w.allowAll()
		ctx, cancel := context.WithCancel(context.Background())
		g, ctx := errgroup.WithContext(ctx)
		w.makeKeys()
		before(w)
		w.serverCert, w.runnerCert = w.certify(identity.RoleServer, "", ""), w.certify(identity.RoleRunner, "", w.tenant)
		w.startUpstreams(ctx, g)
		w.startServer(ctx, g)
		w.startBroker(ctx, g)
		time.Sleep(2 * time.Second) // the feed is current
		defer w.net.Close()
		defer func() {
			cancel()
			if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("the world ended with %v", err)
			}
		}()
		test(t, w)
		for _, key := range []string{modelKey, toolKey} { // INV-17
			v, err := secret.New(key)
			if err != nil {
				t.Fatal(err)
			}
			if secret.NewRedactor(v).Found(w.logged()) {
				t.Errorf("the log holds a key")
			}
		}
	})
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) allowAll() {
	w.paths.Set(consultest.Allow("model-main", "agent-assistant", "acme--agent-assistant", "poor--agent-assistant"), consultest.Allow("model-unpriced", "*"), consultest.Allow("model-claude", "*"), consultest.Allow("model-responses", "*"), consultest.Allow("model-public", "*"),
		consultest.Allow("weather", "agent-assistant", "capped--agent-assistant"), consultest.Allow("inside", "agent-assistant"), consultest.Allow("lists", "agent-assistant"), consultest.Allow("calendar", "agent-assistant"),
		consultest.Allow("modules", "agent-assistant"), consultest.Allow("forge", "agent-assistant"), consultest.Allow("hidden", "agent-assistant"), consultest.Allow("elsewhere", "agent-assistant"))
}

func (w *world) makeKeys() {
	w.dir = filepath.Join(w.t.TempDir(), "broker")
	_, err := keyring.Init(w.dir)
	w.must(err)
	w.keys, err = keyring.Open(w.dir)
	w.must(err)
	w.t.Cleanup(func() { w.keys.Close() })
	w.outside = newOutside(w.keys)
	for name, value := range map[string]string{"provider-key": modelKey, "weather-key": toolKey} {
		w.must(w.keys.PutCredential(w.t.Context(), w.tenant, name, authoritytest.Seal(w.t, w.keys, name, value)))
	}
	w.grant = authority.Grant{ID: newID[protocol.GrantKind](), Tenant: w.tenant, Principal: newID[protocol.PrincipalKind](), Agent: "assistant", Credentials: []string{"weather-key"}}
	w.sealed, err = w.keys.CreateGrant(w.t.Context(), w.grant)
	w.must(err)
	w.signing, err = capability.NewKey(rand.Reader)
	w.must(err)
}

// certify makes a key with a certificate of this deployment.
func (w *world) certify(role identity.Role, id string, tenant protocol.TenantID) *tls.Certificate {
	w.t.Helper()
	key := identitytest.NewKey()
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	w.must(err)
	switch {
	case role == identity.RoleRunner:
		id = identity.RunnerID(spki).String()
	case id == "":
		id = keyring.ServerID(spki).String()
	}
	chain, _, err := w.keys.Issue(w.t.Context(), authority.Leaf{Role: role, ID: id, Tenant: tenant, SPKI: spki})
	w.must(err)
	certs, err := identity.ParsePEM(chain)
	w.must(err)
	return &tls.Certificate{Certificate: [][]byte{certs[0].Raw}, PrivateKey: key, Leaf: certs[0]}
}

func thumbprint(c *tls.Certificate) string {
	return identity.Thumbprint(c.Leaf.RawSubjectPublicKeyInfo)
}

// tools is the upstream of http tools.
type tools struct {
	ln *linktest.Listener
	mu sync.Mutex
	// requests as they came
	got []string
	// answer decides; nil echoes the Authorization header.
	answer http.HandlerFunc
}

func (u *tools) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	u.mu.Lock()
	u.got = append(u.got, r.Method+" "+r.URL.RequestURI()+" "+string(body))
	answer := u.answer
	u.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"sky":"rain","authorised_as":%q}`, r.Header.Get("Authorization"))
}

func (u *tools) requests() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]string(nil), u.got...)
}

func (u *tools) answers(h http.HandlerFunc) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answer = h
}

var (
	providerIP = netip.MustParseAddr("10.9.0.1")
	toolsIP    = netip.MustParseAddr("10.9.0.2")
)

func (w *world) startUpstreams(ctx context.Context, g *errgroup.Group) {
	s, err := scripted.Parse([]byte(script), "test.hcl")
	w.must(err)
	key, err := secret.New(modelKey)
	w.must(err)
	w.scripted = scripted.New(scripted.Config{Script: s, Key: key})
	w.tools = &tools{ln: linktest.NewListener()}
	model := linktest.NewListener()
	door := &http.Server{Handler: w}
	g.Go(func() error {
		defer context.AfterFunc(ctx, func() { door.Close() })()
		door.Serve(model)
		return nil
	})
	server := &http.Server{Handler: w.tools}
	g.Go(func() error {
		defer context.AfterFunc(ctx, func() { server.Close() })()
		server.Serve(w.tools.ln)
		return nil
	})
	w.dials = map[netip.Addr]*linktest.Listener{providerIP: model, toolsIP: w.tools.ln}
}

func (w *world) egress() egress.Network {
	return egress.Network{
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			w.resolved.Add(1)
			switch host {
			case "provider.example":
				return []netip.Addr{providerIP}, nil
			case "tools.example":
				return []netip.Addr{toolsIP}, nil
			}
			return nil, errors.New("no such host")
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			p, ok := w.dials[to.Addr()]
			if !ok {
				return nil, errors.New("connection refused")
			}
			return p.Dial(ctx)
		},
	}
}

// feedServer is the server's side of the feed: real TLS, a beat of 250 ms.
type feedServer struct {
	w  *world
	mu sync.Mutex
	// floors are appended to; statements and silence may change.
	floors []*brokerv1.Floor
	silent bool
	// withheld statements are those that the server does not know yet.
	withheld bool
	wake     chan struct{}
	reports
}

func (f *feedServer) raise(kind brokerv1.FloorKind, id string, minimum int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.floors = append(f.floors, &brokerv1.Floor{Seq: int64(len(f.floors) + 1), Kind: kind, Id: id, Minimum: minimum})
	close(f.wake)
	f.wake = make(chan struct{})
}

func (f *feedServer) silence(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = on
}

// certified says from now on which key signs.
func (f *feedServer) certified() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.withheld = false
	close(f.wake)
	f.wake = make(chan struct{})
}

func (f *feedServer) Feed(ctx context.Context, r *brokerv1.FeedRequest, out *connect.ServerStream[brokerv1.FeedResponse]) error {
	statement, _, err := f.w.keys.CertifyKey(ctx, "rep_1", f.w.signing.Public())
	if err != nil {
		return err
	}
	cursor, statements, snapshot := int(r.GetCursor()), []string{statement}, r.GetCursor() == 0
	for {
		f.mu.Lock()
		fresh, wake, silent, withheld := f.floors[cursor:], f.wake, f.silent, f.withheld
		f.mu.Unlock()
		if !silent {
			cursor += len(fresh)
			m := &brokerv1.FeedResponse{StoreReadUs: time.Now().UnixMicro(), Cursor: int64(cursor), Floors: fresh, Snapshot: snapshot}
			if !withheld {
				m.SigningStatements, statements = statements, nil
			}
			if err := out.Send(m); err != nil {
				return err
			}
			snapshot = false
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-time.After(250 * time.Millisecond):
		}
	}
}

func (w *world) startServer(ctx context.Context, g *errgroup.Group) {
	w.feed = &feedServer{w: w, withheld: w.uncertified, wake: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle(brokerv1connect.NewFeedServiceHandler(w.feed))
	s, err := link.NewServer(link.ServerConfig{Handler: mux, Root: w.keys.Root(), Vouch: w.there, VouchFrom: []identity.Role{identity.RoleBroker}, Certificate: func() (*tls.Certificate, error) { return w.serverCert, nil }})
	w.must(err)
	packets, listener, err := w.net.Listen(serverAddr)
	w.must(err)
	g.Go(func() error { return s.Serve(ctx, packets, listener) })
}

func (w *world) startBroker(ctx context.Context, g *errgroup.Group) {
	cfg, err := broker.ParseConfig([]byte(hclConfig+w.more), "broker.hcl")
	w.must(err)
	start := time.Now()
	paths := broker.Paths(w.paths)
	if w.pathsOf != nil {
		paths = w.pathsOf
	}
	w.broker, err = broker.New(cfg, broker.Ports{
		Own: w.own, Vouch: w.here, Meter: w.meter, Authority: w.outside, Root: w.keys, Paths: paths, CallLog: filepath.Join(w.dir, "calls.log"), SpendFile: filepath.Join(w.dir, "spend.json"), SliceFile: filepath.Join(w.dir, "slices.log"),
		Feed: w.net.Network("10.0.0.1"), Egress: w.egress(), Elapsed: func() time.Duration { return time.Since(start) + time.Hour },
		Log: slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	w.must(err)
	packets, listener, err := w.net.Listen(brokerAddr)
	w.must(err)
	g.Go(func() error { return w.broker.Run(ctx, packets, listener) })
}

// peer is one caller's services.
type peer struct {
	broker    brokerv1connect.BrokerServiceClient
	authority brokerv1connect.AuthorityServiceClient
	trust     brokerv1connect.TrustServiceClient
}

func (w *world) as(cert *tls.Certificate) peer {
	w.t.Helper()
	return w.over(w.dial(cert, nil))
}

func (w *world) over(c *link.Client) peer {
	return peer{brokerv1connect.NewBrokerServiceClient(c, c.URL()), brokerv1connect.NewAuthorityServiceClient(c, c.URL()), brokerv1connect.NewTrustServiceClient(c, c.URL())}
}

// dial the broker, with a second proof where there is one.
func (w *world) dial(cert *tls.Certificate, v link.Vouch) *link.Client {
	w.t.Helper()
	c, err := link.NewClient(link.Config{
		Address: brokerAddr, Trust: link.Trust{Role: identity.RoleBroker, Root: w.keys.Root()}, Network: w.net.Network("10.0.0.3"),
		Certificate: func() (*tls.Certificate, error) { return cert, nil }, Vouch: v,
	})
	w.must(err)
	w.t.Cleanup(func() { c.Close() })
	return c
}

// claims of a good capability for a service-placed turn; change narrows or
// breaks it.
func (w *world) claims(change func(*capability.Claims)) capability.Claims {
	now := time.Now()
	c := capability.Claims{
		ID: newID[protocol.CapabilityKind](), Audience: "default", Tenant: w.tenant, TenantName: "local", Principal: w.grant.Principal,
		Agent: "assistant", Instance: newID[protocol.InstanceKind](), Generation: 2, Session: newID[protocol.SessionKind](), Turn: newID[protocol.TurnKind](),
		Fence: protocol.Fence(1<<32 | 5), Grant: w.grant.ID, SealedGrant: w.sealed, Presenter: thumbprint(w.serverCert), Models: []string{"main", "unpriced", "public", "claude", "responses"},
		Slice: newID[protocol.SliceKind](), SliceBoot: w.broker.BootNonce(), SliceCeiling: 500_000, PolicyDigest: "p", DataBoundary: "personal",
		IssuedAt: now, ExpiresAt: now.Add(time.Minute), Deadline: now.Add(time.Hour),
	}
	if change != nil {
		change(&c)
	}
	return c
}

func (w *world) sign(c capability.Claims) string {
	w.t.Helper()
	token, err := w.signing.Sign(c)
	w.must(err)
	return token
}

func modelRequest(token, route, prompt string) *brokerv1.CallModelRequest {
	return &brokerv1.CallModelRequest{Capability: token, CallId: "cal_1", Request: &runtimev1.ModelRequest{
		Model: route, Messages: []*runtimev1.Message{modeltest.User(prompt)}, MaxOutputTokens: 200,
	}}
}

// call makes one model call to its end.
func call(ctx context.Context, p peer, in *brokerv1.CallModelRequest) (text string, done *runtimev1.ModelDone, err error) {
	s, err := p.broker.CallModel(ctx, in)
	if err != nil {
		return "", nil, protocol.FromConnect(err)
	}
	defer s.Close()
	for s.Receive() {
		text += s.Msg().GetEvent().GetTextDelta()
		if d := s.Msg().GetEvent().GetDone(); d != nil {
			done = d
		}
	}
	return text, done, protocol.FromConnect(s.Err())
}

const arguments = `{"city":"Bern"}`

func httpTool() *brokerv1.HttpTool {
	return &brokerv1.HttpTool{Ref: "http:forecast", Destination: "weather", Method: "GET", Path: "/forecast/{city}", Credential: "weather-key"}
}

// invocation is a good call of a tool and its capability.
func (w *world) invocation(claims func(*capability.Claims), change func(*brokerv1.InvokeRequest)) *brokerv1.InvokeRequest {
	w.t.Helper()
	id := newID[protocol.ActionKind]()
	in := &brokerv1.InvokeRequest{ActionId: id.String(), Tool: httpTool(), Arguments: arguments, IdempotencyKey: "key-" + id.String()}
	if change != nil {
		change(in)
	}
	c := w.claims(func(c *capability.Claims) {
		c.Action, c.ArgsDigest, c.Models = id, canonical.Digest([]byte(arguments)), nil
		c.Tools, c.Destinations = []string{"http:forecast"}, []string{"weather", "inside"}
	})
	if claims != nil {
		claims(&c)
	}
	in.Capability = w.sign(c)
	return in
}
