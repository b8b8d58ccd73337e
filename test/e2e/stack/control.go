//go:build linux

package stack

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
	"bivouac/server/broker/scripted"
)

// modelKey is the name of the credential of the scripted route.
const modelKey = "scripted-key"

// provider is the scripted provider in this process.
type provider struct {
	*scripted.Provider
	address string
	cancel  context.CancelFunc
	done    chan error
}

func (p *provider) end() error {
	p.cancel()
	return <-p.done
}

// Received are the requests that reached the model.
func (s *Stack) Received() []scripted.Received { return s.provider.Received() }

func (s *Stack) startProvider(context.Context) error {
	script, err := scripted.Parse([]byte(s.cfg.Script), "script.hcl")
	if err != nil {
		return err
	}
	if err := s.secret(modelKey, "mk-"+rand.Text()); err != nil {
		return err
	}
	key, err := scripted.KeyFromFile(s.Path("secrets", modelKey))
	if err != nil {
		return err
	}
	l, err := s.cfg.Control.Listen("tcp", loopback+":0")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &provider{Provider: scripted.New(scripted.Config{Script: script, Key: key}), address: l.Addr().String(), cancel: cancel, done: make(chan error, 1)}
	go func() { p.done <- p.Run(ctx, l) }()
	s.provider = p
	return nil
}

// secret keeps a value as a person would: in a file of their own.
func (s *Stack) secret(name, value string) error {
	return os.WriteFile(s.Path("secrets", name), []byte(value+"\n"), 0o600)
}

func (s *Stack) startBroker(ctx context.Context) error {
	data := s.Path("broker")
	if _, err := s.Run(ctx, "bivouac-broker", "init", "--data", data); err != nil {
		return err
	}
	if err := s.writeBroker(data); err != nil {
		return err
	}
	if _, err := s.Run(ctx, "bivouac-broker", "server-code", "--data", data, "--out", s.Path("server-code")); err != nil {
		return err
	}
	more, err := s.watchFlags("broker", false)
	if err != nil {
		return err
	}
	if s.cfg.Database != "" {
		more = append(more, "--server", s.second.runners)
	}
	s.Broker = s.process("broker", s.cfg.Control, "bivouac-broker", append([]string{"run", "--data", data, "--listen", s.broker, "--server", s.runners}, more...)...)
	if s.cfg.Jobs != nil {
		return s.cfg.Jobs.Broker(ctx, s)
	}
	return s.Broker.Start(s.fault("broker")...)
}

// writeBroker writes what an operator would: the model, the destinations, and
// that all agents may reach them.
func (s *Stack) writeBroker(data string) error {
	var b strings.Builder
	if s.cfg.Jobs != nil { // a process of the stack is told by flags
		fmt.Fprintf(&b, "servers = [%q]\n", s.runners)
	}
	fmt.Fprintf(&b, `
model "scripted" {
  base_url        = "http://%s/v1"
  allow_private   = true
  model           = "scripted"
  credential      = %q
  data_boundaries = ["personal", "internal"]
  price {
    input_usd_per_mtok  = 1
    output_usd_per_mtok = 2
  }
}
caps {
  spend_usd_per_hour = 1000 # a test's works ask without a pause
}
`, s.provider.address, modelKey)
	names := []string{"model-scripted"}
	for _, d := range s.cfg.Destinations {
		fmt.Fprintf(&b, "destination %q {\n  url           = %q\n  allow_private = true\n", d.Name, d.URL)
		if d.Egress != "" {
			fmt.Fprintf(&b, "  data_boundaries = [\"internal\"]\n  egress {\n    protocol = %q\n  }\n", d.Egress)
		}
		if d.MCP {
			b.WriteString("  mcp {}\n")
		}
		if d.Credential != "" {
			fmt.Fprintf(&b, "  credential %q {}\n", d.Name)
		}
		b.WriteString("}\n")
		if !d.Closed {
			names = append(names, d.Name)
		}
	}
	if v := s.cfg.Vault; v != nil {
		names = append(names, v.Reached...)
	}
	if err := os.WriteFile(filepath.Join(data, "broker.hcl"), []byte(b.String()), 0o600); err != nil {
		return err
	}
	for _, name := range names {
		text := fmt.Sprintf("Kind = \"service-intentions\"\nName = %q\nSources = [{ Name = \"*\", Action = \"allow\" }]\n", name)
		if err := os.WriteFile(filepath.Join(data, "paths", name+".hcl"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stack) startServer(ctx context.Context) error {
	data := s.Path("server")
	said, err := s.Run(ctx, "bivouac-server", append([]string{"bootstrap", "--data", data, "--principal", "me", "--token-file", s.Path("secrets", "token")}, s.shared()...)...)
	if err != nil {
		return err
	}
	more, err := s.watchFlags("server", true)
	if err != nil {
		return err
	}
	args := append([]string{"--data", data, "--public", s.public, "--runners", s.runners,
		"--broker", s.broker, "--broker-code-file", s.Path("server-code")}, append(s.shared(), more...)...)
	if s.balancer != nil {
		args = append(args, "--advertise-runners", s.balancer.address())
	}
	s.Server = s.process("server", s.cfg.Control, "bivouac-server", args...)
	if s.cfg.Jobs != nil {
		err = s.cfg.Jobs.Server(ctx, s, said)
	} else {
		err = s.Server.Start(s.fault("server")...)
	}
	if err != nil {
		return err
	}
	return s.Ready(ctx)
}

// Ready waits until the server says that it can take a turn.
func (s *Stack) Ready(ctx context.Context) error {
	web := &http.Client{Transport: s.transport(), Timeout: 5 * time.Second}
	defer web.CloseIdleConnections()
	return s.ready(ctx, web, s.Server, s.public)
}

func (s *Stack) ready(ctx context.Context, web *http.Client, p *Process, public string) error {
	return s.until(ctx, p.Name()+" is ready", p, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+public+"/readyz", nil)
		if err != nil {
			return err
		}
		res, err := web.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("readyz answers %s", res.Status)
		}
		return nil
	})
}

func (s *Stack) transport() *http.Transport {
	return &http.Transport{DialContext: s.cfg.Control.Dial, MaxIdleConnsPerHost: 4}
}

// logIn keeps a login for the command line and makes the client.
func (s *Stack) logIn(ctx context.Context) error {
	url, file := "http://"+s.public, s.Path("secrets", "token")
	if _, err := s.CLI(ctx, s.Home, "login", url, "--token-file", file); err != nil {
		return err
	}
	token, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	s.API, err = client.New(client.Config{URL: url, Token: strings.TrimSpace(string(token)), HTTP: &http.Client{Transport: s.transport()}})
	return err
}

// configure sets credentials, agents and grants.
func (s *Stack) configure(ctx context.Context) error {
	names := []string{}
	for _, d := range s.cfg.Destinations {
		if d.Credential == "" {
			continue
		}
		if err := s.secret(d.Name, d.Credential); err != nil {
			return err
		}
		names = append(names, d.Name)
	}
	kept := append([]string{modelKey}, names...)
	if s.cfg.Vault != nil {
		for name, value := range s.cfg.Vault.Stored {
			if err := s.secret(name, value); err != nil {
				return err
			}
			kept = append(kept, name)
		}
	}
	for _, name := range kept {
		if _, err := s.CLI(ctx, s.Home, "credential", "set", name, "--file", s.Path("secrets", name)); err != nil {
			return err
		}
	}
	for i, source := range s.cfg.Agents {
		res, err := s.API.Agents.ApplyAgent(ctx, &apiv1.ApplyAgentRequest{Filename: fmt.Sprintf("agent%d.hcl", i), Source: source})
		if err != nil {
			return err
		}
		if _, err := s.API.Grants.CreateGrant(ctx, &apiv1.CreateGrantRequest{Agent: res.GetAgent().GetName(), Credentials: names}); err != nil {
			return err
		}
	}
	return nil
}

// fault is the environment that stops a process at its label.
func (s *Stack) fault(name string) []string {
	if s.cfg.Fault.Process != name {
		return nil
	}
	return []string{"BIVOUAC_FAULT=" + s.cfg.Fault.Label, "BIVOUAC_FAULT_FILE=" + s.Path("fault")}
}
