package link_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
)

// fixture is a server on loopback that answers who called it, on /stream with
// an endless body, and a runner's certificate.
type fixture struct {
	root    *identitytest.Root
	runner  atomic.Pointer[tls.Certificate]
	id      protocol.RunnerID
	server  atomic.Pointer[tls.Certificate]
	address string
	link    *link.Server
	stop    func()
	// patient lets a client wait for QUIC as long as a busy machine needs; otherwise TCP
	// may be there first, which is as it should be.
	patient bool
}

const tenant = protocol.TenantID("ten_01jdv3k8x0q6v9w2m4t7y5z1ab")

func whoCalls(w http.ResponseWriter, r *http.Request) {
	p, err := link.PeerFrom(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/stream" {
		w.WriteHeader(http.StatusOK)
		fmt.Fprintln(w, "first")
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-link.Draining(r.Context()):
			fmt.Fprintln(w, "drained")
		}
		return
	}
	if r.URL.Path == "/resumed" {
		fmt.Fprintf(w, "%s %v", r.Proto, r.TLS.DidResume)
		return
	}
	fmt.Fprintf(w, "%s %s %s %s", r.Proto, p.Role, p.ID, p.Tenant)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{root: identitytest.NewRoot()}
	f.server.Store(f.root.Leaf(identity.RoleServer, "rep_1", ""))
	f.enrol()
	f.serve(t, "127.0.0.1:0")
	return f
}

// enrol gives the client the certificate of a new runner.
func (f *fixture) enrol() {
	cert, id := f.root.Runner(tenant)
	f.runner.Store(cert)
	f.id = id
}

func (f *fixture) serve(t *testing.T, address string) {
	t.Helper()
	listener, packets := listenBoth(t, address)
	f.address = listener.Addr().String()
	s, err := link.NewServer(link.ServerConfig{
		Handler: http.HandlerFunc(tunnels), Root: f.root.Certificate, ResetKey: &[32]byte{1}, Grace: 200 * time.Millisecond,
		Certificate: func() (*tls.Certificate, error) { return f.server.Load(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	f.link = s
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return s.Serve(ctx, packets, listener) })
	stopped := false
	f.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := g.Wait(); err != nil {
				t.Errorf("serve: %v", err)
			}
		}
	}
	t.Cleanup(func() { f.stop() })
}

// listenBoth opens the same port for TCP and UDP.
func listenBoth(t *testing.T, address string) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 20 {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		p, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return l, p
		}
		l.Close()
	}
	t.Fatal("no port is free for both TCP and UDP")
	return nil, nil
}

func (f *fixture) config() link.Config {
	cfg := link.Config{
		Address:     f.address,
		Trust:       link.Trust{Role: identity.RoleServer, Root: f.root.Certificate},
		Certificate: func() (*tls.Certificate, error) { return f.runner.Load(), nil },
	}
	if f.patient {
		cfg.HeadStart, cfg.DialTimeout = time.Minute, 2*time.Minute
	}
	return cfg
}

func dial(t *testing.T, cfg link.Config) *link.Client {
	t.Helper()
	c, err := link.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func get(c *link.Client, path string) (string, error) {
	return getCtx(context.Background(), c, path)
}

func getCtx(ctx context.Context, c *link.Client, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", c.URL()+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%d: %s", resp.StatusCode, body)
	}
	return string(body), err
}

// gate is a network whose UDP can be shut: what is sent vanishes.
type gate struct{ shut atomic.Bool }

func (g *gate) network() link.Network {
	return link.Network{ListenPacket: func(ctx context.Context) (net.PacketConn, error) {
		p, err := net.ListenPacket("udp", ":0")
		return &gatedConn{PacketConn: p, gate: g}, err
	}}
}

type gatedConn struct {
	net.PacketConn
	gate *gate
}

func (c *gatedConn) WriteTo(b []byte, to net.Addr) (int, error) {
	if c.gate.shut.Load() {
		return len(b), nil
	}
	return c.PacketConn.WriteTo(b, to)
}

func TestBothTransportsNameTheCaller(t *testing.T) {
	f := newFixture(t)
	blocked := new(gate)
	blocked.shut.Store(true)
	for transport, network := range map[string]link.Network{link.HTTP3: {}, link.HTTP2: blocked.network()} {
		f.patient = transport == link.HTTP3
		cfg := f.config()
		cfg.Network = network
		c := dial(t, cfg)
		body, err := get(c, "/")
		if err != nil {
			t.Fatalf("%s: %v", transport, err)
		}
		if !strings.HasSuffix(body, fmt.Sprintf(" runner %s %s", f.id, tenant)) {
			t.Errorf("%s: the handler saw %q", transport, body)
		}
		if got := c.Transport(); got != transport {
			t.Errorf("transport %q, want %q", got, transport)
		}
		if problem := c.QUICProblem(); (problem != "") != (transport == link.HTTP2) || problem != "" && !strings.Contains(problem, "UDP port "+cfg.Address) {
			t.Errorf("%s: QUIC problem %q", transport, problem)
		}
	}
}

// Who is not proven by the root is nobody, or is refused; the proven twin is
// TestBothTransportsNameTheCaller.
func TestServerJudgesCallers(t *testing.T) {
	f := newFixture(t)
	f.patient = true
	stranger, err := identity.SelfSigned(identitytest.NewKey(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	foreign, _ := identitytest.NewRoot().Runner(tenant)
	key := identitytest.NewKey()
	expired := f.root.Certify(key, identity.RoleRunner, "run_x", tenant, time.Now().Add(-48*time.Hour), time.Now().Add(-24*time.Hour))
	for name, c := range map[string]struct {
		cert *tls.Certificate
		want string
	}{
		"self-signed is nobody":  {&stranger, "HTTP/3.0   "},
		"another root's refused": {foreign, "the client certificate is not valid here"},
		"expired is refused":     {expired, "the client certificate is not valid here"},
		"none is refused":        {nil, "the connection has no client certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := f.config()
			cfg.Certificate = nil
			if c.cert != nil {
				cfg.Certificate = func() (*tls.Certificate, error) { return c.cert, nil }
			}
			body, err := get(dial(t, cfg), "/")
			if got := fmt.Sprint(body, err); !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestClientJudgesServer(t *testing.T) {
	f := newFixture(t)
	other := identitytest.NewRoot()
	for name, c := range map[string]struct {
		trust link.Trust
		want  string
	}{
		"pinned root":       {link.Trust{Role: identity.RoleServer, Root: f.root.Certificate}, ""},
		"another root":      {link.Trust{Role: identity.RoleServer, Root: other.Certificate}, "does not hang from the pinned root"},
		"another role":      {link.Trust{Role: identity.RoleBroker, Root: f.root.Certificate}, "the peer is a server, not a broker"},
		"right fingerprint": {link.Trust{Role: identity.RoleServer, Fingerprint: f.root.Fingerprint()}, ""},
		"wrong fingerprint": {link.Trust{Role: identity.RoleServer, Fingerprint: other.Fingerprint()}, "it is another server, or somebody stands in between"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := f.config()
			cfg.Trust = c.trust
			err := dial(t, cfg).Connect(context.Background())
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if protocol.CodeOf(err) != protocol.CodeUnauthenticated || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A machine that joins may think it is another year; once the root is known the
// dates count.
func TestFingerprintNeedsNoClock(t *testing.T) {
	f := newFixture(t)
	long := time.Now().Add(-100 * 24 * time.Hour)
	f.server.Store(f.root.Certify(identitytest.NewKey(), identity.RoleServer, "rep_1", "", long, long.Add(24*time.Hour)))
	cfg := f.config()
	if err := dial(t, cfg).Connect(context.Background()); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
		t.Errorf("an expired server certificate under a pinned root: %v", err)
	}
	cfg.Trust = link.Trust{Role: identity.RoleServer, Fingerprint: f.root.Fingerprint()}
	if err := dial(t, cfg).Connect(context.Background()); err != nil {
		t.Errorf("joining by fingerprint: %v", err)
	}
}

// That a reconnect prefers QUIC is proven in virtual time, by
// TestVirtualUDPBlockedGoesOverTCP.
func TestReconnectAfterServerRestart(t *testing.T) {
	f := newFixture(t)
	c := dial(t, f.config())
	if _, err := get(c, "/"); err != nil {
		t.Fatal(err)
	}
	f.stop()
	if _, err := get(c, "/"); err == nil {
		t.Fatal("the stopped server answered")
	}
	f.serve(t, f.address)
	if _, err := get(c, "/"); err != nil {
		t.Fatalf("after the restart: %v", err)
	}
}

// A connection that its server shuts down takes nothing new: what was not sent goes over
// another one, whole. What cannot be had from its start is an error once, and the next
// request finds a new connection.
func TestUnsentGoesOverAnotherConnection(t *testing.T) {
	f := newFixture(t)
	c := dial(t, f.config())
	for name, tc := range map[string]struct {
		body func() io.Reader
		good bool
	}{
		"nothing":      {func() io.Reader { return nil }, true},
		"text":         {func() io.Reader { return strings.NewReader("all of it") }, true},
		"read once":    {func() io.Reader { return io.MultiReader(strings.NewReader("all of it")) }, false},
		"nothing more": {func() io.Reader { return http.NoBody }, true},
	} {
		if _, err := get(c, "/"); err != nil {
			t.Fatal(name, err)
		}
		c.ShutDown()
		req, err := http.NewRequest(http.MethodPost, c.URL()+"/", tc.body())
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if (err == nil) != tc.good {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			resp.Body.Close()
		}
		if _, err := get(c, "/"); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
}

func TestDrainingEndsLongStreams(t *testing.T) {
	f := newFixture(t)
	blocked := new(gate)
	blocked.shut.Store(true)
	for _, network := range []link.Network{{}, blocked.network()} {
		cfg := f.config()
		cfg.Network = network
		c := dial(t, cfg)
		req, _ := http.NewRequest("GET", c.URL()+"/stream", nil)
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var reader errgroup.Group
		reader.Go(func() error {
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || string(body) != "first\ndrained\n" {
				t.Errorf("the stream ended with %q, %v", body, err)
			}
			return nil
		})
		f.stop()
		_ = reader.Wait()
		f.serve(t, f.address)
	}
}

func TestUpgradeKeepsRunningRequests(t *testing.T) {
	f := newFixture(t)
	g := new(gate)
	g.shut.Store(true)
	cfg := f.config()
	cfg.Network = g.network()
	cfg.DialTimeout = time.Second
	c := dial(t, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", c.URL()+"/stream", nil)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if wait, ok := c.NextProbe(); !ok || wait <= 0 {
		t.Fatalf("over TCP a probe is due later: %v %v", wait, ok)
	}
	if moved, err := c.Upgrade(ctx, nil); moved || err == nil {
		t.Fatal("moved to QUIC through a shut gate")
	}
	g.shut.Store(false)
	if moved, err := c.Upgrade(ctx, nil); !moved || err != nil {
		t.Fatalf("upgrade: %v", err)
	}
	if body, err := get(c, "/"); err != nil || !strings.HasPrefix(body, "HTTP/3") {
		t.Errorf("new requests go %q, %v", body, err)
	}
	first := make([]byte, 6)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "first\n" {
		t.Errorf("the stream on the old connection: %q %v", first, err)
	}
	if _, ok := c.NextProbe(); ok {
		t.Error("a probe is due though the link runs over QUIC")
	}
}

func TestRenewedCertificateServesAfterRedial(t *testing.T) {
	f := newFixture(t)
	c := dial(t, f.config())
	before, err := get(c, "/")
	if err != nil {
		t.Fatal(err)
	}
	f.enrol()
	if again, _ := get(c, "/"); again != before {
		t.Errorf("the connection changed its caller: %q, then %q", before, again)
	}
	if err := c.Redial(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if after, err := get(c, "/"); err != nil || !strings.Contains(after, f.id.String()) {
		t.Errorf("after the redial the handler saw %q, %v", after, err)
	}
}

func TestUnreachableNamesBothPaths(t *testing.T) {
	f := newFixture(t)
	f.stop()
	_, err := get(dial(t, f.config()), "/")
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != protocol.CodeUnavailable ||
		e.Detail != protocol.DetailUnreachable || !strings.Contains(e.Message, "check that the server runs there") ||
		!strings.Contains(e.Message, "UDP ") || !strings.Contains(e.Message, "TCP ") || strings.Contains(e.Message, "context canceled") {
		t.Errorf("got %v", err)
	}
}

// A peer of another role is called what it is.
func TestUnreachableNamesTheRole(t *testing.T) {
	f := newFixture(t)
	f.stop()
	cfg := f.config()
	cfg.Trust.Role = identity.RoleBroker
	if _, err := get(dial(t, cfg), "/"); err == nil || !strings.Contains(err.Error(), "cannot reach the broker at ") || strings.Contains(err.Error(), "server") {
		t.Errorf("got %v", err)
	}
}

func TestClosedClientRefuses(t *testing.T) {
	f := newFixture(t)
	c := dial(t, f.config())
	if _, err := get(c, "/"); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := get(c, "/"); protocol.CodeOf(err) != protocol.CodeCancelled {
		t.Errorf("got %v", err)
	}
}
