package server_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
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

// Real sockets: one listener address for TCP and UDP, both transports, and a
// stop that does not wait for open streams of either.
func TestRealSockets(t *testing.T) {
	b, err := brokerlinktest.New()
	if err != nil {
		t.Fatal(err)
	}
	code, err := b.ServerCode()
	if err != nil {
		t.Fatal(err)
	}
	brokers, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error { return b.Serve(ctx, nil, brokers) })
	dir := t.TempDir()
	c := server.Default()
	c.DataDir, c.PublicAddress, c.RunnerAddress = filepath.Join(dir, "data"), "127.0.0.1:0", "127.0.0.1:0"
	c.BrokerAddress, c.BrokerCodeFile = brokers.Addr().String(), filepath.Join(dir, "code")
	if err := os.WriteFile(c.BrokerCodeFile, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	boot := server.Bootstrap{Config: c, Tenant: "local", Principal: "alice", TokenFile: filepath.Join(dir, "token")}
	if _, err := boot.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(boot.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(c)
	if err != nil {
		t.Fatal(err)
	}
	stop := background(t, s.Run)
	<-s.Listening()
	background(t, func(ctx context.Context) error { return b.FollowFeed(ctx, s.RunnerAddr(), link.Network{}) })
	alice, err := client.New(client.Config{URL: "http://" + s.PublicAddr(), Token: strings.TrimSpace(string(token))})
	if err != nil {
		t.Fatal(err)
	}
	defer alice.Close()
	awaitHTTP(t, "http://"+s.PublicAddr()+"/readyz")

	noUDP := link.Network{ListenPacket: func(context.Context) (net.PacketConn, error) { return nil, net.ErrClosed }}
	for transport, network := range map[string]link.Network{"http/3": {}, "http/2": noUDP} {
		invite, err := alice.Runners.CreateJoinCode(t.Context(), &apiv1.CreateJoinCodeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		joinCode, err := identity.ParseCode(identity.CodeJoin, invite.GetCode())
		if err != nil {
			t.Fatal(err)
		}
		attachForGood(t, b, s.RunnerAddr(), joinCode, transport, network)
	}
	start := time.Now()
	if err := stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
	if took := time.Since(start); took > 2*time.Minute { // the machines would stay for good
		t.Errorf("the stop took %s", took)
	}
}

// attachForGood enrols a machine that pins the root by its fingerprint alone, and
// leaves it attached.
func attachForGood(t *testing.T, b *brokerlinktest.Broker, address string, code identity.Code, transport string, network link.Network) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := identity.SelfSigned(key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dial := func(trust link.Trust) (*link.Client, runnerv1connect.RunnerServiceClient) {
		c, err := link.NewClient(link.Config{Address: address, Network: network, Trust: trust,
			HeadStart: time.Minute, DialTimeout: 2 * time.Minute, Certificate: func() (*tls.Certificate, error) { return &cert, nil }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c, runnerv1connect.NewRunnerServiceClient(c, c.URL())
	}
	_, api := dial(link.Trust{Role: identity.RoleServer, Fingerprint: code.Fingerprint})
	res, err := api.Enroll(t.Context(), &runnerv1.EnrollRequest{Code: code.Reveal(), Name: strings.ReplaceAll(transport, "/", "-"),
		CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest()})
	if err != nil {
		t.Fatal(protocol.FromConnect(err))
	}
	certs, err := identity.ParsePEM(res.GetCertificateChain())
	if err != nil {
		t.Fatal(err)
	}
	cert = tls.Certificate{Certificate: [][]byte{certs[0].Raw}, PrivateKey: key}
	c, api := dial(link.Trust{Role: identity.RoleServer, Root: b.Root.Cert})
	conn, err := api.Connect(t.Context(), &runnerv1.ConnectRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(), BootNonce: "b", Facts: ableFacts()})
	if err != nil {
		t.Fatal(protocol.FromConnect(err))
	}
	stream, err := api.Attach(t.Context(), &runnerv1.AttachRequest{Epoch: conn.GetEpoch()})
	if err != nil || !stream.Receive() {
		t.Fatalf("not attached: %v", err)
	}
	if got := c.Transport(); got != transport {
		t.Errorf("over %s, not %s", got, transport)
	}
}

func awaitHTTP(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not ready", url)
		case <-tick.C:
		}
	}
}
