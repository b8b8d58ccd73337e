//go:build linux

package vaulttest

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"
)

// RotateAudit moves the audit file away, as a log rotation does, and has the server
// open a new one. It returns where the old one is.
func (s *Server) RotateAudit(t testing.TB) (old string) {
	t.Helper()
	ctx := s.Own(t, "rotate the audit file")
	old = s.moveAudit(t)
	s.reopenAudit(t)
	check(t, s.Await(ctx, "new audit file", func(context.Context) bool {
		_, err := os.Stat(s.AuditFile())
		return err == nil
	}))
	return old
}

// FailAudit makes every write to the audit file fail, as on a full disk: a server
// whose only audit device fails refuses all that it would have to record. The
// returned function makes the device work again.
func (s *Server) FailAudit(t testing.TB) (mend func()) {
	t.Helper()
	ctx := s.Own(t, "fail the audit device")
	s.moveAudit(t)
	check(t, os.Mkdir(s.AuditFile(), 0o700)) // no file can be opened here, also not by root
	s.reopenAudit(t)
	check(t, s.Await(ctx, "refusal without audit", func(ctx context.Context) bool { return !s.serves(ctx) }))
	return func() {
		t.Helper()
		// The file is opened by the next request. A signal for that would close it again
		// while others are recorded.
		check(t, os.Remove(s.AuditFile()))
		s.mended(t)
	}
}

// BlockAudit makes writes to the audit file wait for ever, as with a hanging
// collector behind it: requests hang. The returned function lets them go on.
func (s *Server) BlockAudit(t testing.TB) (mend func()) {
	t.Helper()
	ctx := s.Own(t, "block the audit device")
	s.moveAudit(t)
	check(t, syscall.Mkfifo(s.AuditFile(), 0o600))
	// Open for both, so that neither end waits for the other, and read by nobody.
	pipe, err := os.OpenFile(s.AuditFile(), os.O_RDWR, 0)
	check(t, err)
	t.Cleanup(func() { pipe.Close() }) // a second time, when it was mended
	s.reopenAudit(t)
	check(t, s.Await(ctx, "hanging request", func(ctx context.Context) bool { return !s.serves(ctx) }))
	return func() {
		t.Helper()
		read := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, pipe)
			read <- err
		}()
		check(t, os.Remove(s.AuditFile()))
		s.reopenAudit(t)
		check(t, s.Await(s.Own(t, "open another audit file"), "new audit file", func(context.Context) bool {
			_, err := os.Stat(s.AuditFile())
			return err == nil
		}))
		s.mended(t)
		check(t, pipe.Close())
		if err := <-read; err != nil && !errors.Is(err, os.ErrClosed) {
			t.Fatal(err)
		}
	}
}

// moveAudit gives the audit file a name that no earlier one has.
func (s *Server) moveAudit(t testing.TB) string {
	t.Helper()
	old := s.AuditFile() + "." + s.Prefix() + "old"
	check(t, os.Rename(s.AuditFile(), old))
	return old
}

// reopenAudit has the server open its audit file anew.
func (s *Server) reopenAudit(t testing.TB) {
	t.Helper()
	check(t, syscall.Kill(s.PID(), syscall.SIGHUP))
}

func (s *Server) mended(t testing.TB) {
	t.Helper()
	check(t, s.Await(s.Own(t, "mend the audit device"), "audited answer", s.serves))
}

// hangs is how long a request may take until the server counts as hanging: on a busy
// machine the wrong guess is made again at the next look.
const hangs = time.Second

// serves asks for something that is audited.
func (s *Server) serves(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, hangs)
	defer cancel()
	_, err := s.control.Auth().Token().LookupSelfWithContext(ctx)
	return err == nil
}
