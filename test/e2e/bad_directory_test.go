//go:build linux

package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/test/e2e/stack"
)

// Whoever may not write where state belongs is told which directory it is and
// what mends it, before anything starts.
func TestBadReadOnlyDirectory(t *testing.T) {
	p := newBad(t)
	bin := filepath.Dir(p.binary("bivouac"))
	if err := os.Chmod(bin, 0o755); err != nil { // others run it here
		t.Fatal(err)
	}
	i := p.invite()
	home := newHome(t)
	ports := []string{"--public", "127.0.0.1:0", "--runner", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--model", "127.0.0.1:0"}
	for name, args := range map[string][]string{
		"bootstrap": {"bivouac-server", "bootstrap", "--principal", "me", "--token-file", "/dev/null", "--data", "DIR"},
		"server":    {"bivouac-server", "--public", "127.0.0.1:0", "--runners", "127.0.0.1:0", "--data", "DIR"},
		"broker":    {"bivouac-broker", "init", "--data", "DIR"},
		"dev":       append([]string{"bivouac", "dev", "--no-edge", "--data", "DIR"}, ports...),
		"edge":      {"bivouac-edge", "join", i.address(), i.Code, "--state", "DIR"},
		"login":     {"bivouac", "--config", "DIR", "login", p.url, "--token-file", "-"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(home, name)
			if err := os.Mkdir(dir, 0o500); err != nil {
				t.Fatal(err)
			}
			if os.Getuid() == 0 {
				if err := os.Chown(dir, stranger, stranger); err != nil {
					t.Fatal(err)
				}
			}
			for k := range args {
				args[k] = strings.Replace(args[k], "DIR", dir, 1)
			}
			run := func() (string, int) {
				cmd := exec.Command(filepath.Join(bin, args[0]), args[1:]...)
				cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, home
				cmd.Stdin = strings.NewReader(p.token + "\n")
				asStranger(cmd)
				return output(t, cmd)
			}
			said, code := run()
			if code != protocol.CodeFailedPrecondition.ExitCode() {
				t.Errorf("exit code %d", code)
			}
			matches(t, said, dir, "permission denied", "chown|chmod|--data|--state|--config")
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("it left %v (%v)", left, err)
			}
			if name != "broker" && name != "edge" && name != "login" {
				return // those go on, or want more than a directory
			}
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if said, code := run(); code != 0 {
				t.Errorf("mended, exit code %d: %s", code, said)
			}
		})
	}
}

// A port in use is said at once, with the flag that chooses another one; when it
// is free again, everything is as it was.
func TestBadPortInUse(t *testing.T) {
	p := newBad(t)
	at := addresses(t, p.Stack)
	p.must("chat", "hello")
	for _, c := range []struct {
		process *stack.Process
		flag    string
		network string
		args    []string
	}{
		{p.Server, "--public", "tcp", []string{"bivouac-server", "--data", p.Path("server"), "--runners", "127.0.0.1:0", "--broker", at["--broker"], "--public"}},
		{p.Server, "--runners", "tcp", []string{"bivouac-server", "--data", p.Path("server"), "--public", "127.0.0.1:0", "--broker", at["--broker"], "--runners"}},
		{p.Server, "--runners", "udp", []string{"bivouac-server", "--data", p.Path("server"), "--public", "127.0.0.1:0", "--broker", at["--broker"], "--runners"}},
		{p.Broker, "--listen", "tcp", []string{"bivouac-broker", "run", "--data", p.Path("broker"), "--listen"}},
		{p.Broker, "--listen", "udp", []string{"bivouac-broker", "run", "--data", p.Path("broker"), "--listen"}},
	} {
		t.Run(c.args[0]+" "+c.flag+" "+c.network, func(t *testing.T) {
			p := p.with(t)
			if err := c.process.End(); err != nil {
				t.Fatal(err)
			}
			address := occupied(t, c.network)
			said := p.ran(protocol.CodeFailedPrecondition, c.args[0], append(c.args[1:len(c.args):len(c.args)], address)...)
			matches(t, said, address, "in use", c.flag)
			if err := c.process.Start(); err != nil {
				t.Fatal(err)
			}
			if err := p.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			await(t, "a turn", func() error {
				_, err := p.cli("chat", "hello")
				return err
			})
		})
	}
	if out := p.must("sessions"); strings.Count(out, "ses_") != 1 {
		t.Errorf("the conversation was lost:\n%s", out)
	}
}

// occupied is an address that somebody else has.
func occupied(t *testing.T, network string) string {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.LocalAddr().String()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// A second process on a directory is refused, names the directory, and disturbs
// the first one in nothing.
func TestBadSecondOnOneDirectory(t *testing.T) {
	p := newBad(t)
	at := addresses(t, p.Stack)
	edge := p.addEdge(stack.EdgeConfig{Name: "laptop"})
	for name, args := range map[string][]string{
		p.Path("server"):       {"bivouac-server", "--data", p.Path("server"), "--public", "127.0.0.1:0", "--runners", "127.0.0.1:0", "--broker", at["--broker"]},
		p.Path("server") + "/": {"bivouac-server", "bootstrap", "--data", p.Path("server"), "--principal", "me", "--token-file", filepath.Join(p.home, "token")},
		p.Path("broker"):       {"bivouac-broker", "run", "--data", p.Path("broker"), "--listen", "127.0.0.1:0"},
		edge.State:             {"bivouac-edge", "run", "--state", edge.State},
	} {
		t.Run(args[0]+" "+args[1], func(t *testing.T) {
			p := p.with(t)
			said := p.ran(protocol.CodeFailedPrecondition, args[0], args[1:]...)
			matches(t, said, strings.TrimSuffix(name, "/"), "in use|another", "--data|--state|stop")
			p.must("chat", "hello")
		})
	}
	if err := edge.Connected(t.Context()); err != nil {
		t.Error(err)
	}
	// The remedy: another directory.
	other := filepath.Join(p.home, "another")
	if _, err := p.Run(t.Context(), "bivouac-server", "bootstrap", "--data", other, "--principal", "me", "--token-file", filepath.Join(p.home, "token")); err != nil {
		t.Error(err)
	}
}
