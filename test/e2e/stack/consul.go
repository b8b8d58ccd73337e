//go:build linux

package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"bivouac/test/process"
)

// Consul is a server whose intentions say who may reach what, instead of the broker's
// files. An admin sets it up for the stack, as the operator's guide says.
type Consul struct {
	Address, CAFile string
	// Token of the admin.
	Token string
	// Command of the server's own command line, without an address; Home is the
	// admin's home directory.
	Command func(args ...string) *exec.Cmd
	Home    string
}

// environment of the admin, as the consul command line knows it.
func (c *Consul) environment() []string {
	return []string{"CONSUL_HTTP_ADDR=" + c.Address, "CONSUL_CACERT=" + c.CAFile, "CONSUL_HTTP_TOKEN=" + c.Token}
}

// Admin runs one command of the server's own command line with the admin's token, and
// returns what it printed.
func (c *Consul) Admin(ctx context.Context, args ...string) (string, error) {
	cmd := c.Command(args...)
	cmd.Env = append(append(cmd.Env, c.environment()...), "HOME="+c.Home)
	out, err := process.Output(ctx, cmd)
	return strings.TrimSpace(out), err
}

// addBlock adds the consul block to broker.hcl.
func (c *Consul) addBlock(file string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "\nconsul {\n  address    = %q\n  ca_file    = %q\n  token_file = \"consul.token\"\n}\n", c.Address, c.CAFile)
	return errors.Join(err, f.Close())
}

// moveToConsul does what the guide says with a deployment that runs: the block, setup,
// the broker's token, what the paths directory allowed, and a restart of the broker.
func (s *Stack) moveToConsul(ctx context.Context) error {
	c := s.cfg.Consul
	if c == nil {
		return nil
	}
	file := s.Path("broker", "broker.hcl")
	if err := c.addBlock(file); err != nil {
		return err
	}
	setup := s.command(s.cfg.Control, "bivouac", "consul", "setup", "--apply", "--broker-config", file)
	setup.Env = append(setup.Env, c.environment()...)
	if _, err := process.Output(ctx, setup); err != nil {
		return err
	}
	if err := c.makeToken(ctx, "bivouac-broker", s.Path("broker", "consul.token")); err != nil {
		return err
	}
	files, err := filepath.Glob(s.Path("broker", "paths", "*.hcl"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, err := c.Admin(ctx, "config", "write", f); err != nil {
			return err
		}
	}
	return s.restartBroker(ctx)
}

// UseMesh makes server and broker services of the stack's Consul, with an identity of its
// mesh each, as the guide says: the blocks, setup, the server's token, the intention
// between the two, and a restart of both.
func (s *Stack) UseMesh(ctx context.Context) error {
	c, file := s.cfg.Consul, s.Path("broker", "broker.hcl")
	const member = "  service {\n    ttl = \"3s\"\n  }\n  mesh {}\n"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	const token = "  token_file = \"consul.token\"\n"
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), token, token+member, 1)), 0o600); err != nil {
		return err
	}
	setup := s.command(s.cfg.Control, "bivouac", "consul", "setup", "--apply", "--broker-config", file)
	setup.Env = append(setup.Env, c.environment()...)
	if _, err := process.Output(ctx, setup); err != nil {
		return err
	}
	if err := c.makeToken(ctx, "bivouac-server", s.Path("server.token")); err != nil {
		return err
	}
	if _, err := c.Admin(ctx, "intention", "create", "-allow", "bivouac-server", "bivouac-broker"); err != nil {
		return err
	}
	if err := s.Broker.End(); err != nil {
		return err
	}
	if err := s.Broker.Start(); err != nil {
		return err
	}
	return s.useFile(ctx, fmt.Sprintf("consul {\n  address    = %q\n  ca_file    = %q\n  token_file = \"server.token\"\n%s}\n", c.Address, c.CAFile, member))
}

// makeToken of a role, into a file.
func (c *Consul) makeToken(ctx context.Context, role, file string) error {
	out, err := c.Admin(ctx, "acl", "token", "create", "-role-name", role, "-format", "json")
	if err != nil {
		return err
	}
	var made struct{ SecretID string }
	if err := json.Unmarshal([]byte(out), &made); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(made.SecretID+"\n"), 0o600)
}
