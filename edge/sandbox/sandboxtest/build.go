package sandboxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Build compiles the attacker into dir, without cgo: it must run in a sandbox
// that holds nothing else.
func Build(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "attacker")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "bivouac/edge/sandbox/sandboxtest/attacker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the attacker: %v\n%s", err, out)
	}
	return path
}
