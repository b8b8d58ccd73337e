//go:build linux

package vaulttest

import (
	"testing"

	"bivouac/test/engines/child"
	"bivouac/test/engines/engine"
)

// Each runs test on every engine, as a subtest of its name. An engine that is not
// here is skipped with a word about what brings it, or fails if this run must have it.
func Each(t *testing.T, test func(t *testing.T, p engine.Program)) {
	t.Helper()
	engine.Each(t, test, engine.Vaults()...)
}

// servers that tests share, one for each engine.
var servers child.Shared[*Server]

// Main runs the tests of a package, then ends the servers that they shared.
func Main(m *testing.M) int { return servers.Main(m) }

// Open returns the server that the tests of this binary share: unsealed, with its
// storage in memory. Whoever needs faults takes one of its own from Start.
func Open(t testing.TB, p engine.Program) *Server {
	t.Helper()
	return servers.Open(t, p.Name, func(dir string) (*Server, error) { return start(p, dir, inMemory) })
}

// Start starts a server for this test alone, with its storage in files: what was
// written is there after a stop, a kill and a start.
func Start(t testing.TB, p engine.Program) *Server {
	t.Helper()
	s, err := StartIn(p, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// StartIn starts a server like Start's in a folder, for a measurement, which is no test.
func StartIn(p engine.Program, dir string) (*Server, error) { return start(p, dir, inFiles) }
