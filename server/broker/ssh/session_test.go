package ssh

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	wire "golang.org/x/crypto/ssh"

	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
	"bivouac/server/broker/ssh/sshtest"
)

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// site is a host that serves, and the endpoint that knows it.
type site struct {
	*sshtest.Host
	authority wire.Signer
	cfg       Config
}

// newSite serves a host that misbehaves as change says.
func newSite(t *testing.T, change func(*sshtest.Host)) *site {
	t.Helper()
	s := &site{Host: &sshtest.Host{Key: sshtest.NewKey(t)}, authority: sshtest.NewKey(t)}
	s.Authority = s.authority.PublicKey()
	if change != nil {
		change(s.Host)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ln) }()
	t.Cleanup(func() { ln.Close(); <-done })
	base, err := CheckURL("ssh://web1.example")
	if err != nil {
		t.Fatal(err)
	}
	s.cfg = Config{
		Name: "web1", User: "deploy", HostKeys: []wire.PublicKey{s.Key.PublicKey()}, Credentials: []string{"web1-ssh"},
		Commands: map[string]Command{"say": {Run: []string{"echo", "{text}"}, Inspect: []string{"said", "{text}"}, Timeout: time.Minute}, "plain": {Run: []string{"uptime"}, Timeout: time.Minute},
			"read": {Run: []string{"uptime"}, Idempotent: true, Timeout: time.Minute}, "once": {Run: []string{"once", "{idempotency_key}"}, Timeout: time.Minute}},
		Reach: egress.Config{Name: "destination web1", Base: base, AllowPrivate: true, Network: egress.Network{
			Resolve: func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("10.1.2.3")}, nil
			},
			Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
				if to.String() != "10.1.2.3:22" {
					return nil, errors.New("connection refused")
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
			},
		}},
	}
	return s
}

func sayTool() *brokerv1.HttpTool {
	return &brokerv1.HttpTool{Ref: "ssh:say", Destination: "web1", Credential: "web1-ssh", Ssh: &brokerv1.SshCall{Command: "say"}}
}

func (s *site) prepare(t *testing.T, text string) *Run {
	t.Helper()
	r, err := New(s.cfg).Prepare(Call{Tool: sayTool(), Arguments: []byte(`{"text":` + jsonOf(t, text) + `}`)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// signer is a certificate of one action.
func (s *site) signer(t *testing.T, line string, change func(*wire.Certificate)) wire.Signer {
	t.Helper()
	key := sshtest.NewKey(t)
	c := &wire.Certificate{
		Key: key.PublicKey(), CertType: wire.UserCert, KeyId: "bivouac", ValidPrincipals: []string{"deploy"}, ValidBefore: uint64(time.Now().Add(time.Minute).Unix()),
		Permissions: wire.Permissions{CriticalOptions: map[string]string{"force-command": line}},
	}
	if change != nil {
		change(c)
	}
	if err := c.SignCert(rand.Reader, s.authority); err != nil {
		t.Fatal(err)
	}
	out, err := wire.NewCertSigner(c, key)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// call opens a session, runs and closes it.
func (s *site) call(ctx context.Context, t *testing.T, change func(*wire.Certificate), hidden ...secret.Value) (*gateway.Answer, error) {
	t.Helper()
	r := s.prepare(t, "hello; id")
	session, err := r.Open(ctx, s.signer(t, r.Line(), change))
	if err != nil {
		return nil, err
	}
	defer session.Close()
	return session.Run(ctx, hidden...)
}

// notRun expects that nothing was run, for certain, and why.
func (s *site) notRun(t *testing.T, what string, err error, code protocol.Code, words ...string) {
	t.Helper()
	var never *gateway.NotSent
	if !errors.As(err, &never) || protocol.CodeOf(err) != code {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, w := range append(words, "destination web1") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v does not say %q", what, err, w)
		}
	}
	if n := len(s.Ran()); n != 0 {
		t.Errorf("%s: %d commands ran", what, n)
	}
}

// A host runs exactly the command that its certificate is bound to, gets no terminal, no
// agent and no input, and its answer says how it ended.
func TestRun(t *testing.T) {
	got := make(chan string, 1)
	s := newSite(t, func(h *sshtest.Host) {
		h.Greedy = true
		h.RunFunc = func(p sshtest.Process) uint32 {
			b, _ := io.ReadAll(p.Out.(io.Reader))
			got <- string(b)
			fmt.Fprint(p.Out, "hello\n")
			fmt.Fprint(p.Err, "careful\n")
			return 3
		}
	})
	a, err := s.call(t.Context(), t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.Exit == nil || *a.Exit != 3 || !a.Failed || a.Status != 200 || a.Truncated || a.Unread != "" || string(a.Body) != "exit status 3\nhello\n\n\nstderr:\ncareful\n" {
		t.Errorf("%+v %q", a, a.Body)
	}
	if in := <-got; in != "" {
		t.Errorf("the command had the input %q", in)
	}
	ran := s.Ran()
	if len(ran) != 1 || ran[0].Command != "echo 'hello; id'" || ran[0].Asked != ran[0].Command {
		t.Errorf("%+v", ran)
	}
	denied, asked := s.Denied()
	if len(denied) != 3 || len(asked) != 1 || asked[0] != "exec" {
		t.Errorf("denied %v, asked %v", denied, asked)
	}
	s = newSite(t, nil)
	if a, err := s.call(t.Context(), t, nil); err != nil || *a.Exit != 0 || a.Failed || string(a.Body) != "exit status 0" {
		t.Errorf("%+v %v", a, err)
	}
}

// Whatever is wrong before the command was asked for, nothing was run. The twins are in
// TestRun.
func TestOpenRefuses(t *testing.T) {
	other := sshtest.NewKey(t)
	for name, c := range map[string]struct {
		host func(*sshtest.Host)
		know func(*Config)
		cert func(*wire.Certificate)
		code protocol.Code
		says []string
	}{
		"another host key":                {know: func(c *Config) { c.HostKeys = []wire.PublicKey{other.PublicKey()} }, code: protocol.CodePolicyDenied, says: []string{"it shows the key ssh-ed25519 SHA256:", "host_keys"}},
		"a key of another kind is pinned": {know: func(c *Config) { c.HostKeys = []wire.PublicKey{rsaKey(t)} }, code: protocol.CodePolicyDenied, says: []string{"ssh-ed25519 SHA256:", "host_keys"}},
		"another principal":               {cert: func(c *wire.Certificate) { c.ValidPrincipals = []string{"backup"} }, code: protocol.CodeFailedPrecondition, says: []string{"user deploy", "AuthorizedPrincipalsFile"}},
		"an authority of another":         {host: func(h *sshtest.Host) { h.Authority = other.PublicKey() }, code: protocol.CodeFailedPrecondition, says: []string{"TrustedUserCAKeys"}},
		"over":                            {cert: func(c *wire.Certificate) { c.ValidBefore = uint64(time.Now().Add(-time.Second).Unix()) }, code: protocol.CodeFailedPrecondition, says: []string{"clocks"}},
		"a password":                      {host: func(h *sshtest.Host) { h.Password = true }, code: protocol.CodeFailedPrecondition, says: []string{"password", "takes no certificate"}},
		"a second factor":                 {host: func(h *sshtest.Host) { h.More = true }, code: protocol.CodeFailedPrecondition, says: []string{"keyboard-interactive", "wants more"}},
		"anybody":                         {host: func(h *sshtest.Host) { h.Anybody = true }, code: protocol.CodePolicyDenied, says: []string{"without a certificate"}},
		"no session":                      {host: func(h *sshtest.Host) { h.NoSession = true }, code: protocol.CodeFailedPrecondition, says: []string{"opens no session"}},
		"runs nothing":                    {host: func(h *sshtest.Host) { h.NoExec = true }, code: protocol.CodeFailedPrecondition, says: []string{"runs no command"}},
		"a private address":               {know: func(c *Config) { c.Reach.AllowPrivate = false }, code: protocol.CodePolicyDenied, says: []string{"allow_private"}},
		"metadata": {know: func(c *Config) {
			c.Reach.Network.Resolve = func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
			}
		}, code: protocol.CodePolicyDenied, says: []string{"link-local"}},
		"no name": {know: func(c *Config) {
			c.Reach.Network.Resolve = func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such host") }
		}, code: protocol.CodeUnavailable, says: []string{"cannot be resolved"}},
		"nobody there": {know: func(c *Config) {
			c.Reach.Network.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, errors.New("connection refused") }
		}, code: protocol.CodeUnavailable, says: []string{"cannot be reached"}},
		"no SSH": {know: func(c *Config) {
			c.Reach.Network.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
				here, there := net.Pipe()
				t.Cleanup(func() { there.Close() })
				go func() { _, _ = io.Copy(io.Discard, there) }()
				go func() { _, _ = there.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); there.Close() }()
				return here, nil
			}
		}, code: protocol.CodeUnavailable, says: []string{"does not speak SSH"}},
	} {
		s := newSite(t, c.host)
		if c.know != nil {
			c.know(&s.cfg)
		}
		_, err := s.call(t.Context(), t, c.cert)
		s.notRun(t, name, err, c.code, c.says...)
	}
	s := newSite(t, nil)
	_, err := s.prepare(t, "x").Open(t.Context(), nil)
	s.notRun(t, "no certificate", err, protocol.CodePolicyDenied, "no certificate")
}

// A host is known by its authority for its name alone.
func TestHostAuthority(t *testing.T) {
	ca, key := sshtest.NewKey(t), sshtest.NewKey(t)
	for name, c := range map[string]struct {
		shows wire.Signer
		by    wire.Signer
		says  string
	}{
		"its own":             {sshtest.Certify(t, ca, key, "web1.example"), ca, ""},
		"another name":        {sshtest.Certify(t, ca, key, "web2.example"), ca, `for ["web2.example"]`},
		"every name":          {sshtest.Certify(t, ca, key), ca, "good for every one"},
		"another authority":   {sshtest.Certify(t, sshtest.NewKey(t), key, "web1.example"), ca, "host_ca"},
		"without certificate": {key, ca, "host_ca"},
	} {
		s := newSite(t, func(h *sshtest.Host) { h.Key = c.shows })
		s.cfg.HostKeys, s.cfg.HostCAs = nil, []wire.PublicKey{c.by.PublicKey()}
		_, err := s.call(t.Context(), t, nil)
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		s.notRun(t, name, err, protocol.CodePolicyDenied, c.says, "SHA256:")
	}
	// A key that is pinned is known with a certificate that is not, too.
	s := newSite(t, func(h *sshtest.Host) { h.Key = sshtest.Certify(t, ca, key, "web1.example") })
	s.cfg.HostKeys = []wire.PublicKey{key.PublicKey()}
	if _, err := s.call(t.Context(), t, nil); err != nil {
		t.Error(err)
	}
}

// After the command was asked for, only its end says what became of it. INV-5.
func TestOutcomeUnknown(t *testing.T) {
	revoked := protocol.Errorf(protocol.CodePermissionDenied, "the grant was revoked")
	for name, c := range map[string]struct {
		host func(*sshtest.Host)
		end  bool
		says string
	}{
		"cut":               {func(h *sshtest.Host) { h.Cut = true }, false, "was cut off after the command was sent"},
		"without an ending": {func(h *sshtest.Host) { h.NoExit = true }, false, "broke off before the command's exit status"},
		"revoked":           {nil, true, "the grant was revoked"},
		"floods": {func(h *sshtest.Host) {
			h.RunFunc = func(p sshtest.Process) uint32 {
				for {
					if _, err := p.Out.Write(make([]byte, 64<<10)); err != nil {
						return 0
					}
				}
			}
		}, false, "wrote more than 1 MiB"},
	} {
		gone := make(chan struct{})
		ctx, cancel := context.WithCancelCause(t.Context())
		s := newSite(t, func(h *sshtest.Host) {
			if c.end {
				h.RunFunc = func(p sshtest.Process) uint32 {
					cancel(revoked)
					<-p.Gone // the connection is closed at once
					close(gone)
					return 0
				}
				return
			}
			c.host(h)
		})
		s.cfg.MaxRead = 1 << 20
		_, err := s.call(ctx, t, nil)
		cancel(nil)
		if c.end {
			<-gone
		}
		var never *gateway.NotSent
		if protocol.CodeOf(err) != protocol.CodeOutcomeUnknown || errors.As(err, &never) || !strings.Contains(err.Error(), c.says) || len(s.Ran()) != 1 {
			t.Errorf("%s: %v, ran %d", name, err, len(s.Ran()))
		}
	}
	// Before it, an end says that nothing was run.
	ctx, cancel := context.WithCancelCause(t.Context())
	s := newSite(t, nil)
	r := s.prepare(t, "x")
	session, err := r.Open(ctx, s.signer(t, r.Line(), nil))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	cancel(protocol.Errorf(protocol.CodePermissionDenied, "destination web1: the grant was revoked"))
	_, err = session.Run(ctx)
	s.notRun(t, "revoked before", err, protocol.CodePermissionDenied)
}

// A command that ended, by a signal or with something left behind, has an outcome.
func TestEnded(t *testing.T) {
	s := newSite(t, func(h *sshtest.Host) { h.Signal = true })
	if a, err := s.call(t.Context(), t, nil); err != nil || a.Exit != nil || !a.Failed || string(a.Body) != "ended by the signal SIGKILL" {
		t.Errorf("%+v %v", a, err)
	}
}

// What comes back is redacted and bounded, and both outputs keep their place.
func TestAnswerIsBounded(t *testing.T) {
	canary, err := secret.New("canary-of-the-credential/0123")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, func(h *sshtest.Host) {
		h.RunFunc = func(p sshtest.Process) uint32 {
			_, _ = p.Out.Write(bytes.Repeat([]byte("x"), 900))
			_, _ = p.Out.Write([]byte(canary.Reveal()))
			_, _ = p.Out.Write(bytes.Repeat([]byte("y"), 4000))
			_, _ = p.Err.Write([]byte("it failed: " + canary.Reveal() + " \xff"))
			return 1
		}
	})
	for _, limit := range []int{1, 20, 200, 915, 930, 1000, 100_000} {
		r := s.prepare(t, "x")
		r.maxBytes = limit
		session, err := r.Open(t.Context(), s.signer(t, r.Line(), nil))
		if err != nil {
			t.Fatal(err)
		}
		a, err := session.Run(t.Context(), canary)
		session.Close()
		if err != nil {
			t.Fatal(err)
		}
		body := string(a.Body)
		if len(body) > limit || strings.Contains(body, "canary") || a.Truncated != (limit < 100_000) || a.Bytes < 4900 {
			t.Errorf("%d: %d bytes of %d, truncated=%t", limit, len(body), a.Bytes, a.Truncated)
		}
		if limit >= 200 && !strings.Contains(body, "stderr:\nit failed: [redacted]") {
			t.Errorf("%d: %q", limit, body[max(0, len(body)-100):])
		}
	}
}

// A look at a host proves its key, and signs in nowhere.
func TestReach(t *testing.T) {
	s := newSite(t, nil)
	if err := New(s.cfg).Reach(t.Context()); err != nil || len(s.Certificates()) != 0 {
		t.Errorf("%v", err)
	}
	s.cfg.HostKeys = []wire.PublicKey{sshtest.NewKey(t).PublicKey()}
	if err := New(s.cfg).Reach(t.Context()); err == nil || !strings.Contains(err.Error(), "SHA256:") {
		t.Errorf("another key: %v", err)
	}
	s = newSite(t, func(h *sshtest.Host) { h.Anybody = true })
	if err := New(s.cfg).Reach(t.Context()); err == nil || !strings.Contains(err.Error(), "without a certificate") {
		t.Errorf("anybody: %v", err)
	}
	s.cfg.Reach.AllowPrivate = false
	if err := New(s.cfg).Reach(t.Context()); protocol.CodeOf(err) != protocol.CodePolicyDenied {
		t.Errorf("a private address: %v", err)
	}
}

// What a tool may name.
func TestAdmits(t *testing.T) {
	s := newSite(t, nil)
	e := New(s.cfg)
	for name, c := range map[string]struct {
		change func(*brokerv1.HttpTool)
		says   string
	}{
		"sound":                  {func(*brokerv1.HttpTool) {}, ""},
		"with a look-up":         {func(h *brokerv1.HttpTool) { h.Ssh.Inspectable = true }, ""},
		"the look-up itself":     {func(h *brokerv1.HttpTool) { h.Ssh.Inspects = true }, ""},
		"an http tool":           {func(h *brokerv1.HttpTool) { h.Ssh = nil }, `only tools of kind "ssh"`},
		"both":                   {func(h *brokerv1.HttpTool) { h.Method = "GET" }, "no method"},
		"another command":        {func(h *brokerv1.HttpTool) { h.Ssh.Command = "rm" }, "it has once, plain, read, say"},
		"a look-up that is none": {func(h *brokerv1.HttpTool) { h.Ssh.Command, h.Ssh.Inspectable = "plain", true }, "has no inspect"},
		"again, by its key":      {func(h *brokerv1.HttpTool) { h.Ssh.Command, h.Repeatable = "once", true }, ""},
		"again, as it is said":   {func(h *brokerv1.HttpTool) { h.Ssh.Command, h.Repeatable = "read", true }, ""},
		"a read, said by nobody": {func(h *brokerv1.HttpTool) { h.Ssh.Command, h.Repeatable, h.Reads = "plain", true, true }, "idempotent = true"},
		"again, said by nobody":  {func(h *brokerv1.HttpTool) { h.Ssh.Command, h.Repeatable = "plain", true }, "idempotent = true"},
		"once":                   {func(h *brokerv1.HttpTool) { h.Ssh.Command = "plain" }, ""},
		"no credential":          {func(h *brokerv1.HttpTool) { h.Credential = "" }, "needs a credential"},
		"another's credential":   {func(h *brokerv1.HttpTool) { h.Credential = "other" }, "is not bound"},
	} {
		tool := sayTool()
		c.change(tool)
		err := e.Admits(tool)
		if (c.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := s.prepare(t, "x")
	if w := r.Wire(); w.Method != "POST" || w.Path != "/say" || w.Header.Get("Host") != "web1.example:22" {
		t.Errorf("%+v", w)
	}
	for text, good := range map[string]bool{
		"ssh://web1.example": true, "ssh://web1.example:2222": true, "ssh://[fd00::1]:22": true, "ssh://web1.example/": true,
		"https://web1.example": false, "ssh://deploy@web1.example": false, "ssh://web1.example/home": false, "ssh://": false, "ssh://web1.example:0": false, "web1": false, "ssh://web1?x=1": false,
	} {
		if _, err := CheckURL(text); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// rsaKey is of another kind than hosts here have.
func rsaKey(t *testing.T) wire.PublicKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	out, err := wire.NewPublicKey(&k.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
