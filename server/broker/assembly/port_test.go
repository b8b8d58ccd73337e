package assembly

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
	"bivouac/edge/protocol"
)

// A port that is taken is a broker's only if a broker answers there; the refusal to
// start, and the doctor, name the command that shows who has it.
func TestPortThatIsTaken(t *testing.T) {
	root := identitytest.NewRoot()
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	defer func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()
	bound := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	peer := func(role identity.Role) string {
		cert := root.Certify(identitytest.NewKey(), role, "x", "", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
		s, err := link.NewServer(link.ServerConfig{Handler: http.NotFoundHandler(), Root: root.Certificate, Grace: time.Second,
			Certificate: func() (*tls.Certificate, error) { return cert, nil }})
		if err != nil {
			t.Fatal(err)
		}
		l := bound()
		g.Go(func() error { return s.Serve(ctx, nil, l) })
		return l.Addr().String()
	}
	plain, door := bound(), &http.Server{}
	g.Go(func() error {
		defer context.AfterFunc(ctx, func() { door.Close() })()
		door.Serve(plain) // ends with the test
		return nil
	})
	datagrams, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	free := bound()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	broker := peer(identity.RoleBroker)
	for name, c := range map[string]struct {
		address string
		idle    bool
		level   finding.Level
		what    string
	}{
		"free":                  {free.Addr().String(), true, finding.OK, "is free"},
		"its broker":            {broker, false, finding.OK, "by a broker"},
		"another's broker":      {broker, true, finding.Problem, "a broker of another directory"},
		"a server":              {peer(identity.RoleServer), false, finding.Problem, "a server, and no broker"},
		"plain HTTP":            {plain.Addr().String(), false, finding.Problem, "does not answer as a broker"},
		"taken for UDP alone":   {datagrams.LocalAddr().String(), false, finding.Problem, "does not answer as a broker"},
		"no address of a place": {"192.0.2.1:7402", false, finding.Problem, "192.0.2.1:7402"},
	} {
		t.Run(name, func(t *testing.T) {
			r := finding.From("broker")
			examineListener(t.Context(), r, c.address, c.idle)
			f, holder := r.All[0], finding.PortHolder(c.address)
			if f.Level != c.level || !strings.Contains(f.What, c.what) {
				t.Errorf("%+v, want %s of %q", f, c.level, c.what)
			}
			if c.level == finding.OK || strings.HasPrefix(c.address, "192.") {
				return
			}
			if !strings.HasPrefix(f.Mend, holder) {
				t.Errorf("mend %q does not begin with %s", f.Mend, holder)
			}
			if _, _, err := listen(c.address); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "with `"+holder+"`") {
				t.Errorf("starting there: %v", err)
			}
		})
	}
}
