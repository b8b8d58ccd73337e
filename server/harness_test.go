package server_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
	"bivouac/server"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
	"bivouac/server/brokerlink/brokerlinktest"
)

// Names of the pipes in a world.
const (
	brokerAddr = "broker:7402"
	runnerAddr = "runners:7401"
	publicAddr = "public:7400"
)

// world is a server, a small real broker and the pipes between them, for one
// bubble of virtual time.
type world struct {
	t      *testing.T
	broker *brokerlinktest.Broker
	net    *brokerlinktest.Switchboard
	config server.Config
	token  string // of alice, operator of "local"
	stop   func() error
	feed   func() error
}

// newWorld starts everything and waits until a turn can be taken.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := prepare(t)
	w.startBroker()
	w.startServer()
	w.startFeed()
	w.awaitReady()
	return w
}

// prepare makes a data directory with its first principal, and starts nothing.
func prepare(t *testing.T, change ...func(*server.Config)) *world {
	t.Helper()
	b, err := brokerlinktest.New()
	if err != nil {
		t.Fatal(err)
	}
	code, err := b.ServerCode()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, broker: b, net: &brokerlinktest.Switchboard{}}
	dir := t.TempDir()
	c := server.Default()
	c.DataDir, c.BrokerAddress, c.Version = filepath.Join(dir, "data"), brokerAddr, "test"
	c.AdvertiseRunner = runnerAddr
	c.BrokerCodeFile = filepath.Join(dir, "code")
	if err := os.WriteFile(c.BrokerCodeFile, []byte(code+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	c.Elapsed = func() time.Duration { return time.Since(start) }
	for _, f := range change {
		f(&c)
	}
	w.config = c
	boot := server.Bootstrap{Config: c, Tenant: "local", Principal: "alice", TokenFile: filepath.Join(dir, "token")}
	if _, err := boot.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(boot.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	w.token = strings.TrimSpace(string(text))
	return w
}

func (w *world) startBroker() {
	pipe := w.net.Listen(brokerAddr)
	background(w.t, func(ctx context.Context) error { return w.broker.Serve(ctx, nil, pipe) })
}

// startServer starts one; again, after stop, over the same data directory.
func (w *world) startServer() {
	w.t.Helper()
	c := w.config
	c.PublicListener, c.RunnerListener = w.net.Listen(publicAddr), w.net.Listen(runnerAddr)
	c.Network = w.net.Network()
	s, err := server.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.stop = background(w.t, s.Run)
}

func (w *world) startFeed() {
	w.feed = background(w.t, func(ctx context.Context) error { return w.broker.FollowFeed(ctx, runnerAddr, w.net.Network()) })
}

// background runs fn until the test ends or stop is called; it reports fn's error.
func background(t *testing.T, fn func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	var err error
	ended := false
	stop = func() error {
		cancel()
		if !ended {
			err, ended = <-done, true
		}
		return err
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("in the background: %v", err)
		}
	})
	return stop
}

// httpClient dials the public pipe; h2c chooses HTTP/2 with prior knowledge.
func (w *world) httpClient(h2c bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2c)
	protocols.SetUnencryptedHTTP2(h2c)
	tr := &http.Transport{
		Protocols:   protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.net.Dial(ctx, publicAddr) },
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// as is a client of the API with a token.
func (w *world) as(token string) *client.Client {
	w.t.Helper()
	c, err := client.New(client.Config{URL: "http://public:7400", Token: token, HTTP: w.httpClient(true), Retries: -1})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// add makes a principal and answers its client.
func (w *world) add(by *client.Client, tenant, name string, admin bool) (*client.Client, *apiv1.Principal) {
	w.t.Helper()
	res, err := by.Principals.AddPrincipal(w.t.Context(), &apiv1.AddPrincipalRequest{Tenant: tenant, Name: name, Admin: admin})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.as(res.GetToken()), res.GetPrincipal()
}

// readiness is the body of /readyz.
type readiness struct {
	Ready  bool
	Checks []struct {
		Name, Problem string
		OK            bool
	}
}

func (r readiness) String() string {
	var missing []string
	for _, c := range r.Checks {
		if !c.OK {
			missing = append(missing, c.Name+": "+c.Problem)
		}
	}
	return fmt.Sprint(r.Ready, missing)
}

func (w *world) ready() (status int, r readiness) {
	w.t.Helper()
	res, err := w.httpClient(false).Get("http://public:7400/readyz")
	if err != nil {
		return 0, r
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, r
}

func (w *world) awaitReady() {
	w.t.Helper()
	var r readiness
	for range 100 {
		if _, r = w.ready(); r.Ready {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.t.Fatalf("not ready after 10 s: %s", r)
}

// eventually asks until the answer is yes; virtual time passes meanwhile.
func (w *world) eventually(what string, yes func() bool) {
	w.t.Helper()
	for range 4000 {
		if yes() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.t.Fatalf("%s: not after 200 s", what)
}

// machine is a runner's key and its link to the server.
type machine struct {
	key    ed25519.PrivateKey
	id     string
	tenant string
	cert   *tls.Certificate
	link   *link.Client
	api    runnerv1connect.RunnerServiceClient
	epoch  int64
	seen   int64 // mail that it has acknowledged
}

// stranger is a machine that has not enrolled.
func (w *world) stranger() *machine {
	w.t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	cert, err := identity.SelfSigned(key, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	m := &machine{key: key, cert: &cert}
	w.dial(m)
	return m
}

// dial connects a machine with the certificate it has.
func (w *world) dial(m *machine) {
	w.t.Helper()
	if m.link != nil {
		m.link.Close()
	}
	c, err := link.NewClient(link.Config{
		Address: runnerAddr, Network: w.net.Network(),
		Trust:       link.Trust{Role: identity.RoleServer, Root: w.broker.Root.Cert},
		Certificate: func() (*tls.Certificate, error) { return m.cert, nil },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	m.link, m.api = c, runnerv1connect.NewRunnerServiceClient(c, c.URL())
	w.t.Cleanup(func() { c.Close() })
}

// join enrols a new machine for a principal.
func (w *world) join(owner *client.Client, name string, actions ...string) *machine {
	w.t.Helper()
	code, err := owner.Runners.CreateJoinCode(w.t.Context(), &apiv1.CreateJoinCodeRequest{Name: name, Actions: actions})
	if err != nil {
		w.t.Fatal(err)
	}
	m := w.stranger()
	if err := w.enroll(m, code.GetCode()); err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *world) enroll(m *machine, code string) error {
	res, err := m.api.Enroll(w.t.Context(), &runnerv1.EnrollRequest{
		Code: code, CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(),
	})
	if err != nil {
		return protocol.FromConnect(err)
	}
	certs, err := identity.ParsePEM(res.GetCertificateChain())
	if err != nil {
		return err
	}
	m.id, m.tenant = res.GetRunnerId(), res.GetTenantId()
	m.cert = &tls.Certificate{Certificate: [][]byte{certs[0].Raw}, PrivateKey: m.key, Leaf: certs[0]}
	w.dial(m)
	return nil
}

// connect takes the connection row and answers the epoch.
func (w *world) connect(m *machine) int64 {
	w.t.Helper()
	res, err := m.api.Connect(w.t.Context(), &runnerv1.ConnectRequest{
		CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(), BootNonce: "boot",
		Facts: &runnerv1.Facts{Os: "linux", Arch: "amd64", Slots: 2, Actions: []string{"files.list", "files.read", "files.write"}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetEpoch()
}

// able is a machine that can take whole turns, connected.
func (w *world) able(owner *client.Client, name string) *machine {
	w.t.Helper()
	m := w.join(owner, name, "turn", "files.read")
	m.epoch = w.connectAble(m)
	return m
}

func (w *world) connectAble(m *machine) int64 {
	w.t.Helper()
	res, err := m.api.Connect(w.t.Context(), &runnerv1.ConnectRequest{
		CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(), BootNonce: "boot", Facts: ableFacts(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return res.GetEpoch()
}
