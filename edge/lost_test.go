package edge

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// A certificate that is missing or damaged comes back by the device key, at the start
// and under a running daemon. INV-13 holds for its key as ever.
func TestLostCertificateIsRecovered(t *testing.T) {
	for name, lose := range map[string]func(string) error{
		"missing": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("garbage"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
				file := filepath.Join(m.dir.Path(), "runner.crt")
				if err := lose(file); err != nil {
					t.Fatal(err)
				}
				if _, err := m.dir.Certificate(); err == nil || !strings.Contains(err.Error(), "bivouac-edge run") {
					t.Errorf("a lost certificate: %v", err)
				}
				m.run()
				m.connected()
				if _, err := m.dir.Certificate(); err != nil {
					t.Fatal(err)
				}
				if err := lose(file); err != nil {
					t.Fatal(err)
				}
				m.await("a certificate", 2*time.Minute, func() bool { return !m.dir.CertificateLost() })
			})
		})
	}
}

// A machine without its certificate still leaves; one without its key says what helps:
// nobody else can say that it is gone.
func TestLeaveWithLostFiles(t *testing.T) {
	for file, want := range map[string]string{"runner.crt": "", "device.key": "leave --force"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t)
			m := enrolled(t, f)
			if err := os.Remove(filepath.Join(m.dir.Path(), file)); err != nil {
				t.Fatal(err)
			}
			p := LeaveParams{State: m.dir, Supervisors: m.cfg.Supervisors, Network: m.cfg.Network}
			_, err := Leave(t.Context(), p)
			if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "bivouac edge revoke desk")) {
				t.Errorf("without %s: %v", file, err)
			}
			if err == nil {
				return
			}
			if _, err := New(m.cfg); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), want) {
				t.Errorf("a start without %s: %v", file, err)
			}
			code, _ := f.invite(f.root.Fingerprint())
			again := f.params(t, code.Reveal())
			again.State = m.dir.Path()
			if _, err := Join(t.Context(), again); protocol.CodeOf(err) != protocol.CodeAlreadyExists || !strings.Contains(err.Error(), want) {
				t.Errorf("a join without %s: %v", file, err)
			}
			p.Force = true
			if left, err := Leave(t.Context(), p); err != nil || left.Untold == "" || left.Name != "desk" {
				t.Fatalf("what it said: %+v, %v", left, err)
			}
			if _, err := Join(t.Context(), again); err != nil {
				t.Errorf("a join after it: %v", err)
			}
		})
	}
}

// A join to a directory that is a runner's says so, whether a daemon runs there or not.
func TestJoinOfARunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		m := enrolled(t, f)
		code, _ := f.invite(f.root.Fingerprint())
		p := f.params(t, code.Reveal())
		own := p.State
		p.State = m.dir.Path()
		for _, runs := range []bool{false, true} {
			if runs {
				release, err := m.dir.Lock()
				if err != nil {
					t.Fatal(err)
				}
				defer release()
			}
			if _, err := Join(t.Context(), p); protocol.CodeOf(err) != protocol.CodeAlreadyExists || !strings.Contains(err.Error(), "is already the runner desk") {
				t.Errorf("runs %v: %v", runs, err)
			}
		}
		p.State = own
		if _, err := Join(t.Context(), p); err != nil {
			t.Errorf("in a directory of its own: %v", err)
		}
	})
}

// A disk that is full is said as that, and not as somebody else's directory.
func TestJoinOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		code, _ := f.invite(f.root.Fingerprint())
		p := f.params(t, code.Reveal())
		dir, err := state.At(p.State)
		if err != nil {
			t.Fatal(err)
		}
		err = onFullDisk(dir, &os.PathError{Op: "write", Path: p.State, Err: syscall.ENOSPC})
		if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "df -h "+p.State) {
			t.Errorf("a full disk: %v", err)
		}
		if err := onFullDisk(dir, os.ErrPermission); err != os.ErrPermission {
			t.Errorf("another error: %v", err)
		}
		if _, err := Join(t.Context(), p); err != nil {
			t.Errorf("with room: %v", err)
		}
	})
}
