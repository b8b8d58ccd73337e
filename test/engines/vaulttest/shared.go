//go:build linux

package vaulttest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"bivouac/test/engines/engine"
)

// Each runs test on every engine, as a subtest of its name. An engine that is not
// here is skipped with a word about what brings it, or fails if this run must have it.
func Each(t *testing.T, test func(t *testing.T, p engine.Program)) {
	t.Helper()
	engine.Each(t, test, engine.Vaults()...)
}

// servers that tests share, one for each engine, from the first test that opens it
// to the end of Main.
var servers struct {
	sync.Mutex
	main   bool
	opened map[string]*Server
}

// Main runs the tests of a package, then ends the servers that they shared.
func Main(m *testing.M) int {
	servers.Lock()
	servers.main, servers.opened = true, map[string]*Server{}
	servers.Unlock()
	code := m.Run()
	servers.Lock()
	defer servers.Unlock()
	for _, s := range servers.opened {
		if err := errors.Join(s.process.End(), os.RemoveAll(s.dir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// startIn bounds a start, also on a machine that has much else to do.
const startIn = 2 * time.Minute

// Open returns the server that the tests of this binary share: unsealed, with its
// storage in memory. Whoever needs faults takes one of its own from Start.
func Open(t testing.TB, p engine.Program) *Server {
	t.Helper()
	servers.Lock()
	defer servers.Unlock()
	if !servers.main {
		t.Fatal("a package that opens a shared server needs a TestMain that calls vaulttest.Main")
	}
	if s := servers.opened[p.Name]; s != nil {
		return s
	}
	dir, err := os.MkdirTemp("", "bivouac-"+p.Name+"-")
	if err != nil {
		t.Fatal(err)
	}
	s, err := start(p, dir, inMemory)
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	s.shared = true
	servers.opened[p.Name] = s
	return s
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

// Close ends the server. Its folder stays.
func (s *Server) Close() error { return s.process.End() }
