//go:build linux

package consulserver

import (
	"testing"

	"bivouac/test/engines/loopback"
)

// Proxy opens one before the server, on a port of its own. It ends with the test.
func (s *Server) Proxy(t testing.TB) *loopback.Proxy {
	t.Helper()
	return loopback.NewProxy(t, s.HostPort())
}
