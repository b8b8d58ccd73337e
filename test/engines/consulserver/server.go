//go:build linux

package consulserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/consul/api"

	"bivouac/test/engines/child"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/loopback"
	"bivouac/test/process"
)

// storage of a server.
type storage int

const (
	inMemory storage = iota // -dev: everything is gone with the process
	inFiles
	// leaderless servers wait for a second one that never comes: they answer, and know
	// no leader.
	leaderless
)

// Server is one Consul server. Its address stays the same over stops and starts.
type Server struct {
	*child.Child
	Program engine.Program

	dir        string
	storage    storage
	authority  *loopback.Authority
	port       int // HTTPS
	management string
	prefixes   atomic.Int64
}

// start starts a server in dir, waits for its leader and bootstraps access control.
func start(p engine.Program, dir string, kept storage, authority *loopback.Authority) (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), child.StartIn)
	defer cancel()
	s := &Server{Program: p, dir: dir, storage: kept, authority: authority}
	if s.authority == nil {
		var err error
		if s.authority, err = loopback.NewAuthority(); err != nil {
			return nil, err
		}
	}
	if err := s.authority.Certify(dir); err != nil {
		return nil, err
	}
	s.Child = &child.Child{Process: process.New(p.Name, s.path("server.log"), s.command)}
	err := s.listen(ctx)
	if err == nil && kept != leaderless {
		err = s.bootstrap(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", p.Name, err), s.Process.Kill())
	}
	return s, nil
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) command() *exec.Cmd {
	args := []string{"agent", "-config-file", s.path("server.json")}
	if s.storage == inMemory {
		args = append(args, "-dev")
	}
	cmd := s.Program.Command(args...)
	cmd.Dir = s.dir
	cmd.Env = append(cmd.Env, "HOME="+s.dir)
	return cmd
}

// listen finds ports and starts on them. Between the two somebody else may take one.
func (s *Server) listen(ctx context.Context) error {
	const tries = 3
	var err error
	for range tries {
		if err = s.configure(); err != nil {
			return err
		}
		if err = s.up(ctx); err == nil || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
	}
	return err
}

// configure writes the server's file. The ports that nobody here uses are off.
func (s *Server) configure() error {
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = process.FreePort(); err != nil {
			return err
		}
	}
	s.port = ports[0]
	cfg := map[string]any{
		"datacenter": "dc1", "node_name": "only", "server": true,
		"bind_addr": loopback.Host, "advertise_addr": loopback.Host, "client_addr": loopback.Host,
		"ports": map[string]int{"https": s.port, "serf_lan": ports[1], "server": ports[2], "http": -1, "dns": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1},
		"tls": map[string]any{"defaults": map[string]any{
			"ca_file": s.path(loopback.CAFile), "cert_file": s.path(loopback.CertFile), "key_file": s.path(loopback.KeyFile),
		}},
		"acl":                  map[string]any{"enabled": true, "default_policy": "deny", "enable_token_persistence": false},
		"connect":              map[string]any{"enabled": true},
		"disable_update_check": true,
		"performance":          map[string]int{"raft_multiplier": 1},
		"leave_on_terminate":   false, "skip_leave_on_interrupt": true,
		"limits":    map[string]any{"http_max_conns_per_client": 4096},
		"log_level": "info",
	}
	switch s.storage {
	case inFiles:
		cfg["data_dir"], cfg["bootstrap_expect"] = s.path("data"), 1
	case leaderless:
		cfg["data_dir"], cfg["bootstrap_expect"] = s.path("data"), 2
	}
	b, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(s.path("server.json"), b, 0o600)
}

// up starts the program and waits until it answers; with a leader, if it is to have one.
func (s *Server) up(ctx context.Context) error {
	if err := s.Process.Start(); err != nil {
		return err
	}
	c, err := s.client(s.Address(), "")
	if err != nil {
		return err
	}
	defer c.close()
	return s.Await(ctx, "its first answer", func(ctx context.Context) bool {
		leader, err := c.Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
		if s.storage == leaderless {
			return err == nil || strings.Contains(err.Error(), "No cluster leader")
		}
		return err == nil && leader != ""
	})
}

// bootstrap makes the management token, which this process alone holds. A leader that
// has just been elected first makes its access control ready.
func (s *Server) bootstrap(ctx context.Context) error {
	c, err := s.client(s.Address(), "")
	if err != nil {
		return err
	}
	defer c.close()
	var made *api.ACLToken
	err = s.Await(ctx, "management token", func(context.Context) bool {
		made, _, err = c.ACL().Bootstrap()
		return err == nil
	})
	if err != nil {
		return err
	}
	s.management = made.SecretID
	return s.ready(ctx)
}

// ready waits until the server answers what needs a leader and a token.
func (s *Server) ready(ctx context.Context) error {
	c, err := s.client(s.Address(), s.management)
	if err != nil {
		return err
	}
	defer c.close()
	return s.Await(ctx, "answer to its management token", func(ctx context.Context) bool {
		_, _, err := c.ConfigEntries().List(api.ServiceIntentions, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		return err == nil
	})
}

// Start starts the server again on the same address. What was kept in memory is gone: it
// has a new management token then, and its counters begin anew.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	ctx := s.Own(t, "start")
	check(t, s.up(ctx))
	if s.storage == inMemory {
		check(t, s.bootstrap(ctx))
		return
	}
	check(t, s.ready(ctx))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// HostPort is where the server listens, for a proxy before it.
func (s *Server) HostPort() string { return net.JoinHostPort(loopback.Host, strconv.Itoa(s.port)) }

// Address is the server's URL.
func (s *Server) Address() string { return "https://" + s.HostPort() }

// CAFile has the authority under which the server's certificate is.
func (s *Server) CAFile() string { return s.path(loopback.CAFile) }
