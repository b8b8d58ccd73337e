package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What bivouac dev starts gets what programs need, and no token that the person keeps in
// the environment for other commands.
func TestChildrenOfDevInheritNoToken(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "bivouac-server"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"VAULT_TOKEN", "BAO_TOKEN", "NOMAD_TOKEN", "CONSUL_HTTP_TOKEN", "BIVOUAC_TOKEN", "PATHOLOGICAL"} {
		t.Setenv(name, "canary")
	}
	t.Setenv("HOME", dir)
	cmd, err := (&tree{bin: dir}).command("bivouac-server", "run")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(cmd.Env, "HOME="+dir) || strings.Contains(strings.Join(cmd.Env, "\n"), "canary") {
		t.Errorf("%q", cmd.Env)
	}
}
