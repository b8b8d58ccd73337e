//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/test/e2e/stack"
)

// A definition with mistakes is refused with every place and reason, and nothing
// of it is stored; mended, it is taken.
func TestBadAgentFile(t *testing.T) {
	p := newBad(t)
	file := filepath.Join(p.home, "clerk.hcl")
	good := strings.Replace(badAssistant, `"assistant"`, `"clerk"`, 1)
	for name, c := range map[string]struct {
		text string
		says []string
	}{
		"no end":   {good[:len(good)-3], []string{`clerk\.hcl:\d+:\d+: `, "(?i)block|brace|close"}},
		"no comma": {strings.Replace(good, `"files.list", `, `"files.list" `, 1), []string{`clerk\.hcl:7:\d+: .*comma`}},
		"unknown":  {strings.Replace(good, "instructions ", "instrutcions ", 1), []string{`clerk\.hcl:5:\d+: .*instrutcions`, `(?i)instructions`}},
		"value":    {strings.Replace(good, `profile       = "personal"`, `profile       = "grand"`, 1), []string{`clerk\.hcl:3:\d+: .*grand`, "personal"}},
		"two":      {strings.NewReplacer(`"personal"`, `"grand"`, "max_queued", "max_waiting").Replace(good), []string{`clerk\.hcl:3:`, `clerk\.hcl:8:`}},
		"binary":   {"\x00\x01\x02", []string{`clerk\.hcl:1:`}},
	} {
		t.Run(name, func(t *testing.T) {
			p := p.with(t)
			p.write(file, c.text, 0o644)
			p.refused(protocol.CodeInvalidArgument, c.says, "agents", "apply", file)
			p.refused(protocol.CodeInvalidArgument, c.says, "agents", "apply", "--check", file)
			p.refused(protocol.CodeNotFound, nil, "agents", "show", "clerk")
		})
	}
	p.write(file, good, 0o644)
	p.must("agents", "apply", "--check", file)
	p.must("agents", "apply", file)
	if out := p.must("agents", "show", "clerk"); out != good {
		t.Errorf("it came back as\n%s", out)
	}
}

// The files of those who run a deployment are refused in the same way, before
// anything listens; mended, everything is as it was.
func TestBadConfigurationFiles(t *testing.T) {
	p := newBad(t)
	edge := p.addEdge(stack.EdgeConfig{Name: "laptop"})
	p.must("chat", "hello")
	broken := func(file, with string) (line string, mend func()) {
		t.Helper()
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p.write(file, strings.TrimRight(string(good), "\n")+"\n"+with, 0o600)
		return filepath.Base(file), func() { p.write(file, string(good), 0o600) }
	}
	t.Run("broker.hcl", func(t *testing.T) {
		p := p.with(t)
		if err := p.Broker.End(); err != nil {
			t.Fatal(err)
		}
		for _, mistake := range []string{"listne = \"127.0.0.1:7402\"\n", "model \"x\" {\n", "model \"x\" {\n  base_url = \"ftp://x\"\n}\n"} {
			name, mend := broken(p.Path("broker", "broker.hcl"), mistake)
			said := p.ran(protocol.CodeInvalidArgument, "bivouac-broker", "run", "--data", p.Path("broker"), "--listen", "127.0.0.1:0")
			matches(t, said, `broker/`+name+`:\d+`)
			mend()
		}
		if err := p.Broker.Start(); err != nil {
			t.Fatal(err)
		}
		if err := p.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.must("chat", "hello")
	})
	// A path entry is watched: a mistake closes its destination, and mending opens it.
	t.Run("paths", func(t *testing.T) {
		p := p.with(t)
		_, mend := broken(p.Path("broker", "paths", "model-scripted.hcl"), "Sorces = []\n")
		await(t, "the path is denied", func() error {
			_, err := p.cli("chat", "hello")
			if got := exitCode(err); got != protocol.CodePolicyDenied.ExitCode() {
				return fmt.Errorf("exit code %d: %w", got, err)
			}
			matches(t, err.Error(), `FAILED \(policy_denied\): .*model-scripted\.hcl:\d+: unknown field Sorces`)
			return nil
		})
		mend()
		await(t, "the path is open", func() error {
			_, err := p.cli("chat", "hello")
			return err
		})
	})
	t.Run("edge.hcl", func(t *testing.T) {
		p := p.with(t)
		if err := edge.Daemon.End(); err != nil {
			t.Fatal(err)
		}
		for _, mistake := range []string{"folder \"notes\" {\n", "folders = 3\n", "folder \"notes\" {\n  path = \"relative\"\n}\n"} {
			name, mend := broken(filepath.Join(edge.State, "edge.hcl"), mistake)
			said := p.ran(protocol.CodeInvalidArgument, "bivouac-edge", "run", "--state", edge.State)
			matches(t, said, name+`:\d+`)
			mend()
		}
		if err := edge.Daemon.Start(); err != nil {
			t.Fatal(err)
		}
		if err := edge.Connected(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("server.hcl", func(t *testing.T) {
		p := p.with(t)
		file := filepath.Join(p.home, "server.hcl")
		for text, line := range map[string]string{"data_dir = \"x\"\npublik {}\n": ":2", "public {\n": ":2|:1", "public {\n  address = 3 +\n}\n": ":2"} {
			p.write(file, text, 0o600)
			matches(t, p.ran(protocol.CodeInvalidArgument, "bivouac-server", "--config", file), `server\.hcl(`+line+`)`)
		}
	})
	t.Run("model script", func(t *testing.T) {
		p := p.with(t)
		file := filepath.Join(p.home, "model.hcl")
		p.write(file, "rule \"x\" {\n  txet = \"hello\"\n}\n", 0o600)
		said := p.ran(protocol.CodeInvalidArgument, "bivouac", "--config", filepath.Join(p.home, "login"), "dev", "--data", filepath.Join(p.home, "dev"), "--model-script", file,
			"--public", "127.0.0.1:0", "--runner", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--model", "127.0.0.1:0")
		matches(t, said, `model\.hcl:2`, "txet")
	})
}
