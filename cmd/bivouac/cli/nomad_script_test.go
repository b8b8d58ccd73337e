//go:build linux

package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// TestNomadScripts runs testdata/nomad/*.txtar against a real server, with its own command
// line as "nomad".
func TestNomadScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries, and runs a real server")
	}
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		bin, err := stack.Build()
		if err != nil {
			t.Fatal(err)
		}
		s := nomadserver.Start(t, p)
		programs := t.TempDir()
		if err := os.Symlink(p.Path, filepath.Join(programs, "nomad")); err != nil {
			t.Fatal(err)
		}
		testscript.Run(t, testscript.Params{
			Dir: "testdata/nomad", RequireUniqueNames: true,
			Setup: func(env *testscript.Env) error {
				for name, value := range map[string]string{
					"PATH": programs + ":" + bin + ":" + os.Getenv("PATH"), "HOME": filepath.Join(env.WorkDir, "home"),
					"BIVOUAC_CONFIG": filepath.Join(env.WorkDir, "login"), "ADDRESS": s.Address(), "NOMAD_CACERT": s.CAFile(), "ROOT": s.Management(),
				} {
					env.Setenv(name, value)
				}
				return nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "capture": capture},
		})
	})
}
