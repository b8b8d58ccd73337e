//go:build linux

package e2e

import (
	"os"
	"testing"

	"bivouac/test/e2e/stack"
)

func TestMain(m *testing.M) {
	code := m.Run()
	stack.RemoveBuilds()
	os.Exit(code)
}
