//go:build linux

package e2e

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/test/e2e/stack"
)

type invitation struct {
	Code, Command string
	ExpiresAt     time.Time `json:"expires_at"`
}

// address that the invitation's command dials.
func (i invitation) address() string { return strings.Fields(i.Command)[2] }

func (p *person) invite(flags ...string) invitation {
	p.t.Helper()
	var i invitation
	p.decoded(&i, append([]string{"edge", "invite"}, flags...)...)
	return i
}

// Codes that were mistyped, used or kept too long, and codes of another server,
// add no machine, say what to do, and leave a state directory that the next code
// can use.
func TestBadJoinCodes(t *testing.T) {
	p := newBad(t)
	state := filepath.Join(p.home, "machine")
	join := func(p *person, code protocol.Code, says []string, address, text string) {
		p.t.Helper()
		matches(p.t, p.ran(code, "bivouac-edge", "join", address, text, "--state", state), says...)
		if out := p.must("edge", "list"); strings.Contains(out, "run_") {
			p.t.Errorf("a machine was added:\n%s", out)
		}
		said := p.ran(protocol.CodeFailedPrecondition, "bivouac-edge", "run", "--state", state)
		matches(p.t, said, "bivouac-edge join")
	}
	i := p.invite("--name", "laptop")
	secret, print, _ := strings.Cut(strings.TrimPrefix(i.Code, "join_"), "_")

	t.Run("mistyped, found here", func(t *testing.T) {
		p := p.with(t)
		address, asked := deaf(t)
		for name, text := range map[string]string{
			"too short":        "join_" + secret[:25] + "_" + print,
			"a digit too many": i.Code + "0",
			"no base32":        "join_" + secret[:25] + "1_" + print,
			"another kind":     "srv_" + secret + "_" + print,
			"half":             "join_" + secret,
			"something else":   "hello",
		} {
			t.Run(name, func(t *testing.T) {
				join(p.with(t), protocol.CodeInvalidArgument, []string{"join code|code", "copy|bivouac edge invite"}, "https://"+address, text)
			})
		}
		join(p, protocol.CodeInvalidArgument, []string{"https://"}, "ftp://"+address, i.Code)
		if n := asked(); n != 0 {
			t.Errorf("the server was asked %d times", n)
		}
	})
	t.Run("mistyped, found there", func(t *testing.T) {
		last := byte('a')
		if secret[24] == 'a' {
			last = 'b'
		}
		join(p.with(t), protocol.CodeNotFound, []string{"join code is not known", "`bivouac edge invite`"}, i.address(), "join_"+secret[:24]+string(last)+secret[25:]+"_"+print)
	})
	t.Run("another server", func(t *testing.T) {
		other := strings.Map(func(r rune) rune {
			if r == '0' {
				return '1'
			}
			return '0'
		}, print)
		join(p.with(t), protocol.CodeUnauthenticated, []string{"root fingerprint " + print + ", the code names " + other, "ask the server's owner for a new code"}, i.address(), "join_"+secret+"_"+other)
	})
	t.Run("expired", func(t *testing.T) {
		p := p.with(t)
		short := p.invite("--ttl", "1s")
		await(t, "the code's end", func() error {
			if left := time.Until(short.ExpiresAt); left > 0 {
				return fmt.Errorf("%s are left", left)
			}
			return nil
		})
		join(p, protocol.CodeFailedPrecondition, []string{"expired", "`bivouac edge invite`"}, short.address(), short.Code)
	})
	// The first code is still good, in the same directory; and for the same machine
	// it stays so, when the answer was lost.
	out, err := p.Run(t.Context(), "bivouac-edge", "join", i.address(), i.Code, "--state", state)
	if err != nil {
		t.Fatal(err)
	}
	matches(t, out, "joined .* as runner run_")
	t.Run("used", func(t *testing.T) {
		p := p.with(t)
		other := filepath.Join(p.home, "other")
		said := p.ran(protocol.CodeFailedPrecondition, "bivouac-edge", "join", i.address(), i.Code, "--state", other)
		matches(t, said, "used already, by another machine", "`bivouac edge invite`")
		again := p.invite()
		if _, err := p.Run(t.Context(), "bivouac-edge", "join", again.address(), again.Code, "--state", other); err != nil {
			t.Error(err)
		}
		said = p.ran(protocol.CodeAlreadyExists, "bivouac-edge", "join", again.address(), again.Code, "--state", other)
		matches(t, said, "is already the runner", "--state", "`bivouac-edge leave --state "+other+"` first")
	})
}

// deaf listens and takes nothing; asked counts who tried, TCP and UDP.
func deaf(t *testing.T) (address string, asked func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); u.Close() })
	return l.Addr().String(), func() int {
		n := 0
		past := time.Now().Add(-time.Second)
		if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Millisecond)); err == nil {
			if c, err := l.Accept(); err == nil {
				c.Close()
				n++
			}
		}
		if err := u.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err == nil {
			if _, _, err := u.ReadFrom(make([]byte, 1)); err == nil {
				n++
			}
		}
		_ = l.(*net.TCPListener).SetDeadline(past)
		return n
	}
}

// A login that expects another root is refused before it is kept, and so is a
// machine whose server shows another one: TestBadJoinCodes.
func TestBadFingerprint(t *testing.T) {
	p := first(t, newStack(t, stack.Config{Script: badScript}))
	login := filepath.Join(p.home, "login")
	token := p.Path("secrets", "token")
	said := p.ran(protocol.CodePermissionDenied, "bivouac", "--config", login, "login", p.url, "--token-file", token, "--fingerprint", strings.Repeat("0", 64))
	matches(t, said, "the server's root has the fingerprint [0-9a-f]{64}, not the one you gave", "ask the admin", "nothing was kept")
	matches(t, p.ran(protocol.CodeUnauthenticated, "bivouac", "--config", login, "whoami"), "not logged in", "bivouac login URL")
	print := strings.Fields(said[strings.Index(said, "fingerprint "):])[1]
	if _, err := p.Run(t.Context(), "bivouac", "--config", login, "login", p.url, "--token-file", token, "--fingerprint", strings.Trim(print, ",")); err != nil {
		t.Error(err)
	}
	if _, err := p.Run(t.Context(), "bivouac", "--config", login, "whoami"); err != nil {
		t.Error(err)
	}
}
