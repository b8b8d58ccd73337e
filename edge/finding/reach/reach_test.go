package reach

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/finding"
	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
)

// Over the machine's own sockets: a peer that answers, an address where nothing
// listens, one that is none, and a name that does not resolve.
func TestCheck(t *testing.T) {
	root := identitytest.NewRoot()
	cert := root.Certify(identitytest.NewKey(), identity.RoleServer, "x", "", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	s, err := link.NewServer(link.ServerConfig{Handler: http.NotFoundHandler(), Root: root.Certificate, Grace: time.Second,
		Certificate: func() (*tls.Certificate, error) { return cert, nil }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return s.Serve(ctx, p, l) })
	address := l.Addr().String()
	check := func(address string, within time.Duration) (bool, finding.Finding) {
		t.Helper()
		r := finding.From("here")
		ok := Check(t.Context(), r, Peer{Check: "server", Who: "the server", Start: "bivouac-server", Elsewhere: "name another with --server",
			Link: link.Config{Address: address, Trust: link.Trust{Role: identity.RoleServer, Root: root.Certificate}, DialTimeout: within}})
		if len(r.All) == 0 {
			t.Fatalf("%s: nothing was found", address)
		}
		return ok, r.All[0]
	}
	if ok, f := check(address, time.Minute); !ok || f.Level != finding.OK || !strings.Contains(f.What, "over UDP and TCP") {
		t.Errorf("a peer that is there: %v, %+v", ok, f)
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		address:              "nothing listens at " + address,
		"nowhere":            "is no address",
		"nowhere.invalid:74": "cannot be resolved",
	} {
		if ok, f := check(address, 2*time.Second); ok || f.Level != finding.Problem || !strings.Contains(f.What, want) || f.Mend == "" {
			t.Errorf("%s: %v, %+v", address, ok, f)
		}
	}
}
