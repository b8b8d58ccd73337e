//go:build linux

package vaulttest

import (
	"os"
	"testing"
)

// Snapshot keeps what the server has written, as a backup of its storage does. The
// returned function puts that back: whatever came since, ends of tokens too, never
// was. Around both the server stops and is unsealed again.
func (s *Server) Snapshot(t testing.TB) (restore func()) {
	t.Helper()
	s.Own(t, "put back")
	if s.storage != inFiles {
		t.Fatal("put back: this server keeps nothing")
	}
	kept := s.path("snapshot-" + s.Prefix() + "kept")
	s.Stop(t)
	check(t, os.CopyFS(kept, os.DirFS(s.path("storage"))))
	s.Start(t)
	s.Unseal(t)
	return func() {
		t.Helper()
		s.Stop(t)
		check(t, os.RemoveAll(s.path("storage")))
		check(t, os.CopyFS(s.path("storage"), os.DirFS(kept)))
		s.Start(t)
		s.Unseal(t)
	}
}
