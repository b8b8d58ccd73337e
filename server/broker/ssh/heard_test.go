package ssh

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	wire "golang.org/x/crypto/ssh"

	"bivouac/edge/protocol"
	"bivouac/server/broker/ssh/sshtest"
)

// What a host says of itself is shown in an error as one line, whatever is in it, and not
// much of it.
func TestHeard(t *testing.T) {
	ca, key := sshtest.NewKey(t), sshtest.NewKey(t)
	s := newSite(t, func(h *sshtest.Host) {
		h.Key = sshtest.Certify(t, ca, key, "web2.example\n\x1b[2JAll is well.\u202e", strings.Repeat("x", 64<<10))
	})
	s.cfg.HostKeys, s.cfg.HostCAs = nil, []wire.PublicKey{ca.PublicKey()}
	_, err := s.call(t.Context(), t, nil)
	s.notRun(t, "a long name", err, protocol.CodePolicyDenied, "web2.example", "…")
	if text := err.Error(); len(text) > 2000 || strings.ContainsAny(text, "\n\x1b\u202e") {
		t.Errorf("%d bytes: %.300q", len(text), text)
	}
	for in, want := range map[string]string{
		"publickey, password":                  "publickey, password",
		"a\nb\x1b[2J":                          `a\nb\u001b[2J`,
		strings.Repeat("y", maxHeard):          strings.Repeat("y", maxHeard),
		strings.Repeat("y", maxHeard-1) + "éé": strings.Repeat("y", maxHeard-1) + "…",
	} {
		if got := heard(in); got != want {
			t.Errorf("%q: %q, not %q", in, got, want)
		}
	}
}

// A connection that is lost after the exit status leaves outputs of which nobody knows
// whether they are whole, and that is said. The twin is a host that ends the command
// itself, and says no more.
func TestLostAfterTheEnd(t *testing.T) {
	for _, lost := range []bool{false, true} {
		var raw atomic.Pointer[net.Conn]
		s := newSite(t, func(h *sshtest.Host) {
			h.NoExit = true
			h.RunFunc = func(p sshtest.Process) uint32 {
				fmt.Fprint(p.Out, "first half\n")
				_, _ = p.Out.(wire.Channel).SendRequest("exit-status", true, wire.Marshal(struct{ Status uint32 }{0})) // it was read
				if lost {
					(*raw.Load()).Close() // the network
				}
				return 0
			}
		})
		dial := s.cfg.Reach.Network.Dial
		s.cfg.Reach.Network.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			c, err := dial(ctx, to)
			raw.Store(&c)
			return c, err
		}
		a, err := s.call(t.Context(), t, nil)
		if err != nil || *a.Exit != 0 || string(a.Body) != "exit status 0\nfirst half\n" || (a.Unread != "") != lost || lost && !strings.Contains(a.Unread, "the connection was lost") {
			t.Errorf("lost %t: %+v %v", lost, a, err)
		}
	}
}
