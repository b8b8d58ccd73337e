package harness

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"bivouac/edge/link/linktest"
	"bivouac/server"
)

// Names of the first principal and its tenant.
const (
	firstTenant = "local"
	firstPerson = "alice"
)

// publicURL is the name of the API; the listener is a pipe.
const publicURL = "http://public:7400"

func (w *World) serverConfig() server.Config {
	c := server.Default()
	c.DataDir, c.BrokerAddress, c.Version = w.path("server", "data"), brokerAddr, "harness"
	c.AdvertiseRunner, c.BrokerCodeFile = runnerAddr, w.path("server", "code")
	c.Grace = 10 * time.Millisecond // who is killed does not wait
	c.Limits, c.Quotas, c.Network, c.Elapsed, c.Log = w.opt.Limits, w.opt.Quotas, w.net.Network(serverIP), w.elapsed, w.Log.logger(Server)
	return c
}

// bootstrap makes the first principal, as an operator does.
func (w *World) bootstrap() {
	w.t.Helper()
	b := server.Bootstrap{Config: w.serverConfig(), Tenant: firstTenant, Principal: firstPerson, TokenFile: w.path("people", "alice")}
	_, err := b.Run(w.t.Context())
	w.must(err)
	token, err := os.ReadFile(b.TokenFile)
	w.must(err)
	w.admin = w.login(firstPerson, strings.TrimSpace(string(token)))
	w.people[firstPerson] = w.admin
}

func (w *World) startServer() {
	w.t.Helper()
	c := w.serverConfig()
	w.public = linktest.NewListener()
	c.PublicListener = w.public
	var err error
	c.RunnerPacketConn, c.RunnerListener, err = w.net.Listen(runnerAddr)
	w.must(err)
	s, err := server.New(c)
	w.must(err)
	w.serverSince = time.Now()
	w.server.now = run(s.Run)
}

// KillServer ends it without a word to runners and broker; its data stays.
func (w *World) KillServer() {
	w.t.Helper()
	w.Partition(Server)
	w.server.stop(w.t)
}

// StartServer starts a server over the same data and waits until it is ready.
func (w *World) StartServer() {
	w.t.Helper()
	w.startServer()
	w.Heal(Server)
	w.AwaitReady()
}

// RestartServer kills the server and starts it again.
func (w *World) RestartServer() {
	w.t.Helper()
	w.KillServer()
	w.StartServer()
}

// dialPublic reaches the API of the server that runs now.
func (w *World) dialPublic(ctx context.Context, _, _ string) (net.Conn, error) {
	return w.public.Dial(ctx)
}

// AwaitReady waits until the server says that it can take a turn.
func (w *World) AwaitReady() {
	w.t.Helper()
	transport := &http.Transport{DialContext: w.dialPublic, DisableKeepAlives: true}
	var last string
	for range 200 {
		ready, problem := w.ready(transport)
		if ready {
			return
		}
		last = problem
		time.Sleep(100 * time.Millisecond)
	}
	w.t.Fatalf("the server is not ready after 20 s: %s", last)
}

func (w *World) ready(transport http.RoundTripper) (ok bool, problem string) {
	w.t.Helper()
	res, err := (&http.Client{Transport: transport}).Get(publicURL + "/readyz")
	if err != nil {
		return false, err.Error()
	}
	defer res.Body.Close()
	var answer struct {
		Ready  bool            `json:"ready"`
		Checks json.RawMessage `json:"checks"`
	}
	w.must(json.NewDecoder(res.Body).Decode(&answer))
	return answer.Ready, string(answer.Checks)
}
