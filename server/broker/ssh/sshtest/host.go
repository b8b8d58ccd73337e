// Package sshtest is a host of SSH inside a test: it takes certificates of one
// authority, runs what they are bound to with a function, and misbehaves as it is told.
package sshtest

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// Process is one command as the host runs it.
type Process struct {
	// Command that the certificate is bound to, and Asked what the client asked for.
	Command, Asked string
	Out, Err       io.Writer
	// Gone is closed when the connection is.
	Gone <-chan struct{}
}

// Host of SSH. Its fields are set before Serve.
type Host struct {
	// Key by which it is known; a certificate where it shows one.
	Key ssh.Signer
	// Authority whose certificates of users it takes.
	Authority ssh.PublicKey
	// RunFunc runs a command; its result is the exit status. Nil says nothing and exits
	// with 0.
	RunFunc func(Process) uint32

	// What else it may do: ask for a password instead of a key, or beside it; let
	// everybody in; open no session; run nothing; say nothing of the end; end by a signal;
	// cut the connection once the command is asked for.
	Password, More, Anybody, NoSession, NoExec, NoExit, Signal, Cut bool
	// Greedy hosts ask for channels of the client's: an agent, a forwarded connection.
	Greedy bool

	mu     sync.Mutex // guards below
	certs  []*ssh.Certificate
	ran    []Process
	denied []string
	asked  []string // kinds of requests
}

// NewKey of a host or an authority.
func NewKey(t testing.TB) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Certify a host's key for names.
func Certify(t testing.TB, authority, key ssh.Signer, names ...string) ssh.Signer {
	t.Helper()
	cert := &ssh.Certificate{Key: key.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: names, ValidBefore: uint64(time.Now().Add(time.Hour).Unix())}
	if err := cert.SignCert(rand.Reader, authority); err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Line of a key as authorized_keys has it.
func Line(k ssh.PublicKey) string { return string(ssh.MarshalAuthorizedKey(k)) }

// Serve until the listener ends, and wait for everything.
func (h *Host) Serve(ln net.Listener) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		raw, err := ln.Accept()
		if err != nil {
			return
		}
		all.Go(func() { h.connection(newBuffered(raw, &all)) })
	}
}

// Certificates that it was shown and took.
func (h *Host) Certificates() []*ssh.Certificate {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*ssh.Certificate(nil), h.certs...)
}

// Ran are the commands that were run.
func (h *Host) Ran() []Process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Process(nil), h.ran...)
}

// Denied are the kinds of channels that the client refused, and Asked the kinds of its
// own requests.
func (h *Host) Denied() (denied, asked []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.denied...), append([]string(nil), h.asked...)
}

func (h *Host) config() *ssh.ServerConfig {
	c := &ssh.ServerConfig{NoClientAuth: h.Anybody}
	c.AddHostKey(h.Key)
	questions := func(ssh.ConnMetadata, ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
		return nil, errors.New("nobody answers")
	}
	if h.Password {
		c.PasswordCallback = func(ssh.ConnMetadata, []byte) (*ssh.Permissions, error) {
			return nil, errors.New("a password came")
		}
		c.KeyboardInteractiveCallback = questions
		return c
	}
	checker := &ssh.CertChecker{
		SupportedCriticalOptions: []string{"force-command"},
		IsUserAuthority: func(by ssh.PublicKey) bool {
			return h.Authority != nil && string(by.Marshal()) == string(h.Authority.Marshal())
		},
	}
	c.PublicKeyCallback = func(m ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		p, err := checker.Authenticate(m, key)
		if err != nil {
			return nil, err
		}
		h.mu.Lock()
		h.certs = append(h.certs, key.(*ssh.Certificate))
		h.mu.Unlock()
		if h.More {
			return nil, &ssh.PartialSuccessError{Next: ssh.ServerAuthCallbacks{KeyboardInteractiveCallback: questions}}
		}
		return p, nil
	}
	return c
}

func (h *Host) connection(raw net.Conn) {
	defer raw.Close()
	conn, channels, requests, err := ssh.NewServerConn(raw, h.config())
	if err != nil {
		return
	}
	gone := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { defer close(gone); _ = conn.Wait() })
	all.Go(func() { ssh.DiscardRequests(requests) })
	for c := range channels {
		if c.ChannelType() != "session" || h.NoSession {
			_ = c.Reject(ssh.Prohibited, "none")
			continue
		}
		channel, asks, err := c.Accept()
		if err != nil {
			return
		}
		all.Go(func() { h.session(conn, channel, asks, gone) })
	}
}

// greed asks for what a client may have.
func (h *Host) greed(conn *ssh.ServerConn) {
	_, _, _ = conn.SendRequest("keepalive@openssh.com", true, nil)
	for _, kind := range []string{"auth-agent@openssh.com", "forwarded-tcpip", "x11"} {
		if _, _, err := conn.OpenChannel(kind, nil); err != nil {
			h.mu.Lock()
			h.denied = append(h.denied, kind)
			h.mu.Unlock()
		}
	}
}

func (h *Host) session(conn *ssh.ServerConn, channel ssh.Channel, asks <-chan *ssh.Request, gone chan struct{}) {
	defer channel.Close()
	for ask := range asks {
		h.mu.Lock()
		h.asked = append(h.asked, ask.Type)
		h.mu.Unlock()
		if ask.Type != "exec" || h.NoExec {
			_ = ask.Reply(false, nil)
			continue
		}
		var m struct{ Command string }
		if ssh.Unmarshal(ask.Payload, &m) != nil {
			return
		}
		p := Process{Command: m.Command, Asked: m.Command, Out: channel, Err: channel.Stderr(), Gone: gone}
		if conn.Permissions != nil && conn.Permissions.CriticalOptions["force-command"] != "" {
			p.Command = conn.Permissions.CriticalOptions["force-command"]
		}
		h.mu.Lock()
		h.ran = append(h.ran, p)
		h.mu.Unlock()
		if h.Cut {
			conn.Close()
			return
		}
		_ = ask.Reply(true, nil)
		if h.Greedy {
			h.greed(conn)
		}
		h.run(channel, p)
		return
	}
}

func (h *Host) run(channel ssh.Channel, p Process) {
	var status uint32
	if h.RunFunc != nil {
		status = h.RunFunc(p)
	}
	switch {
	case h.NoExit:
	case h.Signal:
		_, _ = channel.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal     string
			Dumped     bool
			Text, Lang string
		}{Signal: "KILL"}))
	default:
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
	}
}
