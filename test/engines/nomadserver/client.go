//go:build linux

package nomadserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"

	"bivouac/test/process"
)

// Client is one Nomad client: a node.
type Client struct {
	Name string
	// Node is its id, from its first registration on.
	Node string

	server  *Server
	process *process.Process
	port    int
}

// ClientConfig of a node.
type ClientConfig struct {
	Name, Pool string
	// Volumes are host volumes, by name: folders of the test.
	Volumes map[string]string
	// Bare has no driver enabled.
	Bare bool
}

// AddClient starts a node and waits until it is ready.
func (s *Server) AddClient(t testing.TB, cfg ClientConfig) *Client {
	t.Helper()
	port, err := process.FreePort()
	check(t, err)
	c := &Client{Name: cfg.Name, server: s, port: port}
	check(t, os.WriteFile(s.path(cfg.Name+".hcl"), []byte(c.config(cfg)), 0o600))
	c.process = process.New("nomad client "+cfg.Name, s.path(cfg.Name+".log"), func() *exec.Cmd { return s.agent(cfg.Name) })
	s.clients = append(s.clients, c)
	c.Start(t)
	return c
}

// config of a node. An environment with AWS_CA_BUNDLE makes the env_aws fingerprinter
// fail, and the client then does not start; the others only cost time.
func (c *Client) config(cfg ClientConfig) string {
	volumes := ""
	for name, path := range cfg.Volumes {
		volumes += fmt.Sprintf("  host_volume %q {\n    path = %q\n  }\n", name, path)
	}
	pool := cfg.Pool
	if pool == "" {
		pool = "default"
	}
	return fmt.Sprintf(`%sname     = %q
data_dir = %q
ports {
  http = %d
}
client {
  enabled           = true
  servers           = ["127.0.0.1:%d"]
  node_pool         = %q
  no_host_uuid      = true
  network_interface = "lo"
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault,cni"
    "driver.allowlist"     = "raw_exec"
  }
%s}
plugin "raw_exec" {
  config {
    enabled = %t
  }
}
`, c.server.tlsBlock(), c.Name, c.server.path(c.Name), c.port, c.server.rpc, pool, volumes, !cfg.Bare)
}

// Start starts the node, again after a Stop or Kill, and waits until it is ready.
func (c *Client) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startIn)
	defer cancel()
	check(t, c.process.Start())
	check(t, await(ctx, c.process, "ready node", func(context.Context) error {
		nodes, _, err := c.server.Root().Nodes().List(nil)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(nodes, func(n *api.NodeListStub) bool { return n.Name == c.Name })
		if i < 0 || nodes[i].Status != api.NodeStatusReady {
			return errors.New("not ready")
		}
		c.Node = nodes[i].ID
		return nil
	}))
}

// Stop ends the agent alone: what it started goes on, as over an upgrade.
func (c *Client) Stop(t testing.TB) { t.Helper(); check(t, c.process.End()) }

// Kill ends the agent as kill -9 does: what it started goes on.
func (c *Client) Kill(t testing.TB) { t.Helper(); check(t, c.process.Kill()) }

// PowerOff ends the agent and all that it started at once, as a power failure does.
func (c *Client) PowerOff(t testing.TB) {
	t.Helper()
	check(t, errors.Join(c.process.Kill(), endBelow(c.server.path(c.Name))))
}

// Remove ends the node with all that it started, and makes Nomad forget it.
func (c *Client) Remove(t testing.TB) {
	t.Helper()
	c.PowerOff(t)
	_, _, err := c.server.Root().Nodes().Purge(c.Node, nil)
	check(t, err)
	check(t, unmountBelow(c.server.path(c.Name)))
	check(t, os.RemoveAll(c.server.path(c.Name)))
}

// Path below the node's own folder, which has the allocations in alloc.
func (c *Client) Path(parts ...string) string {
	return filepath.Join(append([]string{c.server.path(c.Name)}, parts...)...)
}

// Log is the end of what the agent said.
func (c *Client) Log() string { return c.process.Tail() }

// TaskLog is what a task of an allocation wrote on standard error.
func (c *Client) TaskLog(allocation, task string) string {
	files, _ := filepath.Glob(filepath.Join(c.server.path(c.Name), "alloc", allocation, "alloc", "logs", task+".stderr.*"))
	slices.Sort(files)
	text := ""
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			text += string(b)
		}
	}
	return text
}
