//go:build linux

package nomadserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac/test/engines/engine"
	"bivouac/test/engines/loopback"
	"bivouac/test/process"
)

// startIn bounds a start, also on a machine that has much else to do.
const startIn = 3 * time.Minute

// Each runs test on Nomad, as a subtest of its name. Where it is not on PATH the test is
// skipped with a word about that, or fails if this run must have it.
func Each(t *testing.T, test func(t *testing.T, p engine.Program)) {
	t.Helper()
	engine.Each(t, test, engine.Nomad)
}

// Server is one Nomad server. Its addresses stay the same over stops and starts.
type Server struct {
	Program engine.Program

	dir        string
	http, rpc  int
	serf       int
	process    *process.Process
	management string
	clients    []*Client
}

// Names of roles in certificates, which agents demand of each other.
const serverName, clientName = "server.global.nomad", "client.global.nomad"

// Start starts a server for this test, with access control, and waits for its leader.
func Start(t testing.TB, p engine.Program) *Server {
	t.Helper()
	return start(t, newServer(t, p, 1))
}

// StartBareRPC starts one whose agents speak to each other without TLS.
func StartBareRPC(t testing.TB, p engine.Program) *Server {
	t.Helper()
	s := newServer(t, p, 1)
	b, err := os.ReadFile(s.path("server.hcl"))
	check(t, err)
	bare := regexp.MustCompile(`(rpc|verify_server_hostname) +=.*true`).ReplaceAll(b, []byte("$1 = false"))
	check(t, os.WriteFile(s.path("server.hcl"), bare, 0o600))
	return start(t, s)
}

func start(t testing.TB, s *Server) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startIn)
	defer cancel()
	check(t, s.up(ctx))
	check(t, await(ctx, s.process, "management token", func(context.Context) error {
		made, _, err := s.client("").ACLTokens().Bootstrap(nil)
		if err == nil {
			s.management = made.SecretID
		}
		return err
	}))
	return s
}

// StartLeaderless starts one of three servers, which has no leader and gets none.
func StartLeaderless(t testing.TB, p engine.Program) *Server {
	t.Helper()
	s := newServer(t, p, 3)
	ctx, cancel := context.WithTimeout(t.Context(), startIn)
	defer cancel()
	check(t, s.process.Start())
	check(t, await(ctx, s.process, "answer", func(context.Context) error {
		_, err := s.client("").Status().Leader()
		var answer api.UnexpectedResponseError
		if errors.As(err, &answer) && answer.HasStatusCode() {
			err = nil
		}
		return err
	}))
	return s
}

// newServer of so many is not started.
func newServer(t testing.TB, p engine.Program, servers int) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "bivouac-nomad-") // short: sockets lie below it
	check(t, err)
	s := &Server{Program: p, dir: dir}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	authority, err := loopback.NewAuthority()
	check(t, err)
	check(t, authority.Certify(dir, serverName, clientName, "localhost"))
	for _, port := range []*int{&s.http, &s.rpc, &s.serf} {
		*port, err = process.FreePort()
		check(t, err)
	}
	check(t, os.WriteFile(s.path("server.hcl"), []byte(s.config(servers)), 0o600))
	s.process = process.New(p.Name+" server", s.path("server.log"), func() *exec.Cmd { return s.agent("server") })
	return s
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

// agent is one of a name. What it starts has its folder in the environment, by which it is
// found again.
func (s *Server) agent(name string) *exec.Cmd {
	cmd := s.Program.Command("agent", "-config", s.path(name+".hcl"))
	cmd.Dir = s.dir
	cmd.Env = append(cmd.Env, "HOME="+s.path(name))
	return cmd
}

// tlsBlock is the same for all agents.
func (s *Server) tlsBlock() string {
	return fmt.Sprintf(`tls {
  http                   = true
  rpc                    = true
  ca_file                = %q
  cert_file              = %q
  key_file               = %q
  verify_server_hostname = true
  verify_https_client    = false
}
acl {
  enabled                  = true
  token_min_expiration_ttl = "1s"
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
disable_update_check = true
bind_addr            = %q
`, s.CAFile(), s.path(loopback.CertFile), s.path(loopback.KeyFile), loopback.Host)
}

func (s *Server) config(servers int) string {
	return fmt.Sprintf(`%sname     = "server"
data_dir = %q
ports {
  http = %d
  rpc  = %d
  serf = %d
}
server {
  enabled           = true
  bootstrap_expect  = %d
  heartbeat_grace   = "2s"
  min_heartbeat_ttl = "2s"
}
`, s.tlsBlock(), s.path("server"), s.http, s.rpc, s.serf, servers)
}

// up starts the server and waits until it has a leader.
func (s *Server) up(ctx context.Context) error {
	if err := s.process.Start(); err != nil {
		return err
	}
	return await(ctx, s.process, "leader", func(ctx context.Context) error {
		leader, err := s.client("").Status().Leader()
		if err == nil && leader == "" {
			err = errors.New("no leader yet")
		}
		return err
	})
}

// again is how often somebody is asked whether it is as far.
const again = 50 * time.Millisecond

// await tries until it goes well, or the program is gone, or ctx ends.
func await(ctx context.Context, p *process.Process, what string, try func(context.Context) error) error {
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.Gone():
			return fmt.Errorf("%s ended before %s\n%s", p.Name(), what, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("no %s: %w: %w\n%s", what, context.Cause(ctx), err, p.Tail())
		}
	}
}

// client of a token; empty: without one.
func (s *Server) client(token string) *api.Client {
	ca, err := os.ReadFile(s.CAFile())
	if err == nil {
		var c *api.Client
		cfg := &api.Config{Address: s.Address(), SecretID: token, WaitTime: time.Second, TLSConfig: &api.TLSConfig{CACertPEM: ca},
			HttpClient: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}}
		if err = api.ConfigureTLS(cfg.HttpClient, cfg.TLSConfig); err == nil {
			if c, err = api.NewClient(cfg); err == nil {
				return c
			}
		}
	}
	panic(err) // the certificate is our own
}

// Root is a client that may do everything, as the admin who sets Nomad up.
func (s *Server) Root() *api.Client { return s.client(s.management) }

// Client of a token.
func (s *Server) Client(token string) *api.Client { return s.client(token) }

// Folder of the server and its nodes.
func (s *Server) Folder() string { return s.dir }

// Management is the admin's token.
func (s *Server) Management() string { return s.management }

// Token makes one with these rules and writes it into a file of the test.
func (s *Server) Token(t testing.TB, name, rules string) (file, secret string) {
	t.Helper()
	_, err := s.Root().ACLPolicies().Upsert(&api.ACLPolicy{Name: name, Rules: rules}, nil)
	check(t, err)
	made, _, err := s.Root().ACLTokens().Create(&api.ACLToken{Name: name, Type: "client", Policies: []string{name}}, nil)
	check(t, err)
	file = filepath.Join(t.TempDir(), "token")
	check(t, os.WriteFile(file, []byte(made.SecretID+"\n"), 0o600))
	check(t, os.Chmod(filepath.Dir(file), 0o700))
	return file, made.SecretID
}

// Address is the URL of its API.
func (s *Server) Address() string {
	return "https://" + net.JoinHostPort(loopback.Host, strconv.Itoa(s.http))
}

// CAFile has the authority under which all certificates are.
func (s *Server) CAFile() string { return s.path(loopback.CAFile) }

// Run runs Nomad's own command line as the admin, and returns what it says.
func (s *Server) Run(t testing.TB, args ...string) (string, error) {
	t.Helper()
	return s.RunAs(s.management, args...)
}

// RunAs is Run as who has another token.
func (s *Server) RunAs(token string, args ...string) (string, error) {
	cmd := s.Program.Command(args...)
	cmd.Env = append(cmd.Env, "HOME="+s.dir, "NOMAD_ADDR="+s.Address(), "NOMAD_CACERT="+s.CAFile(), "NOMAD_TOKEN="+token)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Stop ends the server as its operator does, Kill as a power failure; Start brings it
// back with what it had.
func (s *Server) Stop(t testing.TB) { t.Helper(); check(t, s.process.End()) }

// Kill ends the server at once.
func (s *Server) Kill(t testing.TB) { t.Helper(); check(t, s.process.Kill()) }

// Start starts the server again.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startIn)
	defer cancel()
	check(t, s.up(ctx))
}

// Log is the end of what the server said.
func (s *Server) Log() string { return s.process.Tail() }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
