//go:build linux

package vaulttest

import (
	"testing"

	"bivouac/test/engines/loopback"
)

// Proxy spoils the way to a server.
type Proxy = loopback.Proxy

// Proxy opens one before the server, on a port of its own. It ends with the test.
func (s *Server) Proxy(t testing.TB) *Proxy {
	t.Helper()
	return loopback.NewProxy(t, s.HostPort())
}
