//go:build linux

// Package stack runs the product as a person runs it: server, broker and edge
// runners as processes of their own, from freshly built binaries, on free
// loopback ports, with all state in one directory. It owns those processes and
// nothing else: setting up goes through the same commands and the same API that
// everybody has.
//
// It guarantees that Close leaves no process of the stack behind; a process is
// only ever ended by its number. The scripted model provider runs in the calling
// process, so that it outlives whatever a test kills.
package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"bivouac/server/api/client"
	"bivouac/test/process"
)

// Config of one stack.
type Config struct {
	// Bin holds the binaries, Dir everything else; Dir is made when missing.
	Bin, Dir string
	// Script is the text of the scripted provider's script. Its route is "scripted".
	Script string
	// Destinations that the broker may reach, beside the provider.
	Destinations []Destination
	// Agents are definitions, as HCL. Every one gets a grant with all credentials.
	Agents []string
	// Fault is set on the first start of the process that it names.
	Fault Fault
	// Database is the DSN of a PostgreSQL database, which a second server shares:
	// runners then reach both at one address that leads to whichever lives.
	Database string
	// Control is where server, broker and provider run; the zero Place is here.
	Control Place
	// Vault holds grants and credentials, instead of the broker's keyring.
	Vault *Vault
	// Consul says who may reach what, instead of the broker's files.
	Consul *Consul
	// Watched by metrics and traces; the zero value is by nobody.
	Watched Watched
	// Jobs run server and broker; nil: they are processes of the stack.
	Jobs Jobs
}

// Destination of http tools. A credential is kept under the destination's name.
type Destination struct {
	Name, URL, Credential string
	Closed                bool // no path leads there
	// Egress protocol, where sandboxed code may read packages from it.
	Egress string
	// MCP says that it is an MCP server.
	MCP bool
}

// Fault stops one process at a step; the binaries need the build tag "faults".
type Fault struct {
	Process string // server, broker or edge; supervisor and worker get it from edge
	Label   string // of edge/fault, with "@n" for the n-th time
}

// Place is a network in which processes run: another namespace, for instance.
type Place struct {
	// Host is the address that others dial. Default 127.0.0.1.
	Host string
	// Into moves a command there; nil leaves it here.
	Into func(*exec.Cmd)
	// Listen and Dial are there too; nil means here.
	Listen func(network, address string) (net.Listener, error)
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

func (p Place) withDefaults() Place {
	if p.Host == "" {
		p.Host = loopback
	}
	if p.Into == nil {
		p.Into = func(*exec.Cmd) {}
	}
	if p.Listen == nil {
		p.Listen = net.Listen
	}
	if p.Dial == nil {
		p.Dial = (&net.Dialer{Timeout: 2 * time.Second}).DialContext
	}
	return p
}

const loopback = "127.0.0.1"

// Stack is a running deployment.
type Stack struct {
	cfg Config
	// API is the first principal's client; Login the directory of its login.
	API   *client.Client
	Login string
	// Home is the person's home directory.
	Home string

	Server, Broker *Process
	// Second is the other server of one database, and SecondAPI its client.
	Second    *Process
	SecondAPI *client.Client
	Edges     []*Edge

	public, runners, broker string // addresses
	second                  struct{ public, runners string }
	balancer                *balancer
	provider                *provider
	pages                   map[string]string // of numbers, by process
}

// Start brings everything up except runners, in the order in which the parts
// need each other. After an error nothing is left running.
func Start(ctx context.Context, cfg Config) (_ *Stack, err error) {
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, err
	}
	if cfg.Bin, err = filepath.Abs(cfg.Bin); err != nil {
		return nil, err
	}
	cfg.Control = cfg.Control.withDefaults()
	s := &Stack{cfg: cfg, Login: filepath.Join(cfg.Dir, "login"), Home: filepath.Join(cfg.Dir, "home")}
	for _, dir := range []string{s.Home, s.Path("logs"), s.Path("secrets")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.choosePorts(); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{s.startProvider, s.startBalancer, s.startBroker, s.startServer, s.startSecond, s.logIn, s.moveToVault, s.moveToConsul, s.configure} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Stack) choosePorts() error {
	for _, a := range []struct {
		to   *string
		host string
	}{{&s.public, loopback}, {&s.runners, s.cfg.Control.Host}, {&s.broker, s.cfg.Control.Host},
		{&s.second.public, loopback}, {&s.second.runners, s.cfg.Control.Host}} {
		port, err := process.FreePort()
		if err != nil {
			return err
		}
		*a.to = net.JoinHostPort(a.host, fmt.Sprint(port))
	}
	return nil
}

// Path of a file in the stack's directory.
func (s *Stack) Path(parts ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, parts...)...)
}

// URL of the public API.
func (s *Stack) URL() string { return "http://" + s.public }

// SecondURL of the public API of the other server; empty: there is none.
func (s *Stack) SecondURL() string {
	if s.Second == nil {
		return ""
	}
	return "http://" + s.second.public
}

// Close ends everything, runners first, and waits. Supervisors that outlive
// their daemon are ended too.
func (s *Stack) Close() error { return s.end((*Process).End) }

// Kill ends everything at once and leaves nothing either: for a test that does not
// look at how the parts stop.
func (s *Stack) Kill() error { return s.end((*Process).Kill) }

func (s *Stack) end(stop func(*Process) error) error {
	var errs []error
	for _, e := range s.Edges {
		errs = append(errs, stop(e.Daemon))
	}
	if s.Second != nil {
		errs = append(errs, stop(s.Second))
	}
	errs = append(errs, stop(s.Server), stop(s.Broker), sweep(s.cfg.Dir))
	if s.balancer != nil {
		s.balancer.close()
	}
	for _, e := range s.Edges {
		errs = append(errs, removeGroups(e.State))
	}
	for _, c := range []*client.Client{s.API, s.SecondAPI} {
		if c != nil {
			c.Close()
		}
	}
	if s.provider != nil {
		errs = append(errs, s.provider.end())
	}
	return errors.Join(errs...)
}

// until tries again for up to three minutes, or until a process of the stack
// ends that should be running.
func (s *Stack) until(ctx context.Context, what string, p *Process, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for: %s: %w\n%s", what, err, p.Tail())
		case <-p.Gone():
			return fmt.Errorf("waited for: %s: %s ended: %w\n%s", what, p.Name(), err, p.Tail())
		case <-time.After(15 * time.Millisecond):
		}
	}
}
