//go:build linux

package consulserver

import (
	"testing"

	"bivouac/test/engines/child"
	"bivouac/test/engines/engine"
)

// Each runs test on Consul, as a subtest of its name. Where it is not here the test is
// skipped with a word about what brings it, or fails if this run must have it.
func Each(t *testing.T, test func(t *testing.T, p engine.Program)) {
	t.Helper()
	engine.Each(t, test, engine.Consul)
}

// common is the server that tests share.
var common child.Shared[*Server]

// Main runs the tests of a package, then ends the server that they shared.
func Main(m *testing.M) int { return common.Main(m) }

// Open returns the server that the tests of this binary share, with its storage in
// memory. Whoever needs faults takes one of its own from Start.
func Open(t testing.TB, p engine.Program) *Server {
	t.Helper()
	return common.Open(t, p.Name, func(dir string) (*Server, error) { return start(p, dir, inMemory, nil) })
}

// Start starts a server for this test alone, with its storage in files: what was written
// is there after a stop, a kill and a start.
func Start(t testing.TB, p engine.Program) *Server {
	t.Helper()
	return ending(t, p, inFiles, nil)
}

// StartDev starts one for this test alone that forgets everything when it ends.
func StartDev(t testing.TB, p engine.Program) *Server {
	t.Helper()
	return ending(t, p, inMemory, nil)
}

// Leaderless starts another server beside s, which answers and knows no leader: as all
// servers of a cluster that has lost most of them. Its certificate is under the same
// authority.
func (s *Server) Leaderless(t testing.TB) *Server {
	t.Helper()
	return ending(t, s.Program, leaderless, s)
}

func ending(t testing.TB, p engine.Program, kept storage, beside *Server) *Server {
	t.Helper()
	s, err := start(p, t.TempDir(), kept, beside.trust())
	check(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// StartIn starts a server in a folder, with its storage in files, for a measurement,
// which is no test.
func StartIn(p engine.Program, dir string) (*Server, error) { return start(p, dir, inFiles, nil) }
