//go:build linux

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"bivouac/test/e2e/stack"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

// TestConsulScripts runs testdata/consul/*.txtar against a real server, with its own
// command line as "consul".
func TestConsulScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries, and runs a real server")
	}
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		bin, err := stack.Build()
		if err != nil {
			t.Fatal(err)
		}
		s := consulserver.StartDev(t, p)
		programs := t.TempDir()
		if err := os.Symlink(p.Path, filepath.Join(programs, "consul")); err != nil {
			t.Fatal(err)
		}
		testscript.Run(t, testscript.Params{
			Dir: "testdata/consul", RequireUniqueNames: true,
			Setup: func(env *testscript.Env) error {
				for name, value := range map[string]string{
					"PATH": programs + ":" + bin + ":" + os.Getenv("PATH"), "HOME": filepath.Join(env.WorkDir, "home"),
					"BIVOUAC_CONFIG": filepath.Join(env.WorkDir, "login"), "CONSUL_HTTP_ADDR": s.Address(), "CONSUL_CACERT": s.CAFile(), "ROOT": s.Management(),
				} {
					env.Setenv(name, value)
				}
				file, err := os.ReadFile("testdata/consul/broker.hcl")
				if err != nil {
					return err
				}
				if err := os.Chmod(env.WorkDir, 0o700); err != nil {
					return err
				}
				return os.WriteFile(filepath.Join(env.WorkDir, "broker.hcl"), file, 0o600)
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "token": tokenOf},
		})
	})
}

// tokenOf FILE: writes the secret that the last command made into a file that is its
// owner's alone.
func tokenOf(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: token file")
	}
	var made struct{ SecretID string }
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &made))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(made.SecretID+"\n"), 0o600))
}
