//go:build linux

package consulserver

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"bivouac/test/engines/loopback"
)

// answerIn bounds one request of a test, also on a machine that has much else to do.
const answerIn = 30 * time.Second

func (s *Server) trust() *loopback.Authority {
	if s == nil {
		return nil
	}
	return s.authority
}

// client talks to the server at an address, which may be a proxy's.
type client struct {
	*api.Client
	wire *http.Transport
}

func (c client) close() { c.wire.CloseIdleConnections() }

func (s *Server) client(address, token string) (client, error) {
	wire := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: s.authority.Pool(), MinVersion: tls.VersionTLS12},
		MaxIdleConnsPerHost: 64, ForceAttemptHTTP2: true,
	}
	c, err := api.NewClient(&api.Config{Address: address, Token: token, HttpClient: &http.Client{Transport: wire, Timeout: answerIn}})
	return client{c, wire}, err
}

// Admin is a client that may do everything, for a measurement, which is no test. done ends
// its connections.
func (s *Server) Admin() (c *api.Client, done func(), err error) {
	made, err := s.client(s.Address(), s.management)
	return made.Client, made.close, err
}

// Client of a token. Its connections end with the test.
func (s *Server) Client(t testing.TB, token string) *api.Client {
	t.Helper()
	c, err := s.client(s.Address(), token)
	check(t, err)
	t.Cleanup(c.close)
	return c.Client
}

// Root is a client that may do everything, as the admin who sets the server up.
func (s *Server) Root(t testing.TB) *api.Client {
	t.Helper()
	return s.Client(t, s.management)
}

// Management is the token of the admin, for what takes a token and no client.
func (s *Server) Management() string { return s.management }

// Prefix is new at each call: services, policies and roles of a test begin with it, so
// that tests on one server do not meet.
func (s *Server) Prefix() string { return fmt.Sprintf("t%d-", s.prefixes.Add(1)) }

// Token makes one with these rules, which may be none, and writes it into a file of the
// test. life bounds it; zero: it does not end.
func (s *Server) Token(t testing.TB, rules string, life time.Duration) (file string, made *api.ACLToken) {
	t.Helper()
	root := s.Root(t)
	token := &api.ACLToken{Description: "of a test", ExpirationTTL: life}
	if rules != "" {
		policy, _, err := root.ACL().PolicyCreate(&api.ACLPolicy{Name: s.Prefix() + fmt.Sprint(time.Now().UnixNano()), Rules: rules}, nil)
		check(t, err)
		token.Policies = []*api.ACLLink{{ID: policy.ID}}
	}
	made, _, err := root.ACL().TokenCreate(token, nil)
	check(t, err)
	file = filepath.Join(t.TempDir(), "token")
	WriteToken(t, file, made.SecretID)
	return file, made
}

// WriteToken puts a token into a file as whoever rotates it does: beside it, then in its
// place.
func WriteToken(t testing.TB, file, secret string) {
	t.Helper()
	check(t, os.WriteFile(file+".new", []byte(secret+"\n"), 0o600))
	check(t, os.Rename(file+".new", file))
}

// Snapshot keeps what the cluster knows. The returned function puts it back: whatever
// came since never was.
func (s *Server) Snapshot(t testing.TB) (restore func()) {
	t.Helper()
	s.Own(t, "put back")
	stream, _, err := s.Root(t).Snapshot().Save(nil)
	check(t, err)
	defer stream.Close()
	kept, err := io.ReadAll(stream)
	check(t, err)
	return func() {
		t.Helper()
		check(t, s.Root(t).Snapshot().Restore(nil, bytes.NewReader(kept)))
	}
}

// Run runs the server's own command line as the admin, and returns what it says.
func (s *Server) Run(t testing.TB, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.Program.Path, args...)
	cmd.Dir = s.dir
	cmd.Env = []string{
		"HOME=" + s.dir, "PATH=" + os.Getenv("PATH"),
		"CONSUL_HTTP_ADDR=" + s.Address(), "CONSUL_CACERT=" + s.CAFile(), "CONSUL_HTTP_TOKEN=" + s.management,
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
