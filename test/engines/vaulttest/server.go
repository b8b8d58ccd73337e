//go:build linux

package vaulttest

import (
	"context"
	"crypto/x509"
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

	"github.com/hashicorp/vault/api"

	"bivouac/test/engines/child"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/loopback"
	"bivouac/test/process"
)

const host = loopback.Host

// storage of a server.
type storage string

const (
	inMemory storage = "inmem"
	inFiles  storage = "file"
)

// Server is one server of an engine. Its address stays the same over stops and
// starts.
type Server struct {
	*child.Child
	Program engine.Program

	dir       string
	storage   storage
	authority *x509.CertPool
	port      int
	key       string // the one share that unseals
	root      string
	control   *api.Client // with the root token
	prefixes  atomic.Int64
}

// start starts, initializes and unseals a server in dir, and turns its audit on.
func start(p engine.Program, dir string, kept storage) (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), child.StartIn)
	defer cancel()
	s := &Server{Program: p, dir: dir, storage: kept}
	authority, err := loopback.NewAuthority()
	if err != nil {
		return nil, err
	}
	if err := authority.Certify(dir); err != nil {
		return nil, err
	}
	s.authority = authority.Pool()
	s.Child = &child.Child{Process: process.New(p.Name, s.path("server.log"), s.command)}
	if err = s.listen(ctx); err == nil {
		err = s.initialize(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", p.Name, err), s.Process.Kill())
	}
	return s, nil
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) command() *exec.Cmd {
	cmd := s.Program.Command("server", "-config", s.path("server.hcl"))
	cmd.Dir = s.dir
	cmd.Env = append(cmd.Env, "HOME="+s.dir)
	return cmd
}

// listen finds a port and starts on it. Between the two somebody else may take it.
func (s *Server) listen(ctx context.Context) error {
	const tries = 3
	var err error
	for range tries {
		if s.port, err = process.FreePort(); err != nil {
			return err
		}
		if err = os.WriteFile(s.path("server.hcl"), []byte(s.config()), 0o600); err != nil {
			return err
		}
		if s.control, err = s.client(s.Address(), ""); err != nil {
			return err
		}
		if err = s.up(ctx); err == nil || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
	}
	return err
}

func (s *Server) config() string {
	where := ""
	if s.storage == inFiles {
		where = fmt.Sprintf("path = %q", s.path("storage"))
	}
	own := "disable_mlock = true"
	if s.Program.Name == engine.OpenBao.Name {
		// It locks no memory, and takes audit devices by API when it is told to:
		// tests add some that fail.
		own = "unsafe_allow_api_audit_creation = true"
	}
	return fmt.Sprintf(`ui        = false
log_level = "info"
api_addr  = %q
%s

storage %q {
  %s
}

listener "tcp" {
  address       = "%s:%d"
  tls_cert_file = %q
  tls_key_file  = %q
}
`, s.Address(), own, s.storage, where, host, s.port, s.path(loopback.CertFile), s.path(loopback.KeyFile))
}

// up starts the program and waits until it answers, sealed or not.
func (s *Server) up(ctx context.Context) error {
	if err := s.Process.Start(); err != nil {
		return err
	}
	return s.Await(ctx, "its first answer", func(ctx context.Context) bool {
		_, err := s.control.Sys().SealStatusWithContext(ctx)
		return err == nil
	})
}

// initialize makes the one key share and the root token, both for this process
// alone, and opens the audit file before anything else is asked of the server.
func (s *Server) initialize(ctx context.Context) error {
	made, err := s.control.Sys().InitWithContext(ctx, &api.InitRequest{SecretShares: 1, SecretThreshold: 1})
	if err != nil {
		return err
	}
	s.key, s.root = made.Keys[0], made.RootToken
	s.control.SetToken(s.root)
	if err := s.unseal(ctx); err != nil {
		return err
	}
	return s.control.Sys().EnableAuditWithOptionsWithContext(ctx, "file", &api.EnableAuditOptions{
		Type: "file", Options: map[string]string{"file_path": s.AuditFile(), "mode": "0600"},
	})
}

func (s *Server) unseal(ctx context.Context) error {
	if _, err := s.control.Sys().UnsealWithContext(ctx, s.key); err != nil {
		return err
	}
	return s.Await(ctx, "unsealed answer", func(ctx context.Context) bool {
		h, err := s.control.Sys().HealthWithContext(ctx)
		return err == nil && h.Initialized && !h.Sealed && !h.Standby
	})
}

// Start starts the server again on the same storage and address. It is sealed then.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	check(t, s.up(s.Own(t, "start")))
}

// Seal makes the server forget its storage key. It refuses everything from then on.
func (s *Server) Seal(t testing.TB) {
	t.Helper()
	check(t, s.control.Sys().SealWithContext(s.Own(t, "seal")))
}

// Unseal gives the server its storage key again, and waits until it serves.
func (s *Server) Unseal(t testing.TB) {
	t.Helper()
	check(t, s.unseal(s.Own(t, "unseal")))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// HostPort is where the server listens, for a proxy before it.
func (s *Server) HostPort() string { return net.JoinHostPort(host, strconv.Itoa(s.port)) }

// Address is the server's URL.
func (s *Server) Address() string { return "https://" + s.HostPort() }

// CAFile has the authority under which the server's certificate is.
func (s *Server) CAFile() string { return s.path(loopback.CAFile) }

// AuditFile is where the server writes what is asked of it.
func (s *Server) AuditFile() string { return s.path("audit.log") }
