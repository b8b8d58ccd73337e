package edge

import (
	"strings"
	"testing"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/protocol"
)

// A machine that was away for longer than its certificate lived comes back by its
// device key. One that was revoked meanwhile does not. INV-13.
func TestExpiredRunnerRecoversWithItsKey(t *testing.T) {
	for _, revoked := range []bool{false, true} {
		virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
			m.run()
			m.connected()
			if err := m.stop(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(30 * 24 * time.Hour)
			f.with(func() { f.forgot = revoked })
			m.run()
			if !revoked {
				m.connected()
				if n := get(f, func() int { return f.certs }); n != 1 {
					t.Errorf("%d certificates were made", n)
				}
				return
			}
			time.Sleep(time.Minute)
			err := m.stop()
			if protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "was revoked") || !strings.Contains(err.Error(), "join URL CODE") {
				t.Errorf("a revoked runner ends with %v", err)
			}
			if n := get(f, func() int { return f.certs }); n != 0 {
				t.Errorf("a revoked runner was certified %d times", n)
			}
		})
	}
}

// A certificate that ends under a running daemon, because nobody could renew it, is
// recovered by the same daemon.
func TestCertificateThatEndsUnderARunningDaemon(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		f.stop()
		time.Sleep(testLife + 10*time.Minute)
		f.listen()
		m.connected()
		if got := get(f, func() []string { return f.log }); len(got) == 0 || got[len(got)-1] != "recover" {
			t.Errorf("the server was asked for %v", got)
		}
	})
}

// A clock that is hours off locks nobody out: dates are judged by the server's,
// status says so, and once the clock is right it is believed again. INV-20.
func TestClockThatIsOff(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		const behind = 6 * time.Hour
		f.stop()
		f.live(behind) // by our clock the server's certificate is not valid yet
		f.listen()
		m.run()
		m.connected()
		if s := m.daemon.Status(); !strings.Contains(s.LastError, "clock is 6h0m0s behind") {
			t.Errorf("status says %q", s.LastError)
		}
		if off := time.Until(m.dir.Now()).Round(time.Second); off != behind {
			t.Errorf("dates are judged %v off", off)
		}
		// The clock is set right, which here means that the server's comes to ours.
		f.stop()
		f.live(0)
		f.listen()
		m.connected()
		if off := time.Until(m.dir.Now()).Round(time.Second); off != 0 {
			t.Errorf("after the clock was set right dates are judged %v off", off)
		}
	})
}

// A server whose own certificate has ended, and that gives a time at which it had
// not, is not believed: the certificate that it hands out is younger than that.
func TestTimeOfAnEndedServerKeyIsNotBelieved(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		f.stop()
		f.ahead = -2 * time.Hour
		f.tls = f.root.Certify(identitytest.NewKey(), identity.RoleServer, "rep_1", "", time.Now().Add(-20*time.Hour), time.Now().Add(-time.Hour))
		f.listen()
		m.run()
		time.Sleep(time.Minute)
		if s := m.daemon.Status(); s.Connected || !strings.Contains(s.LastError, "not of the time that it says") {
			t.Errorf("connected %v, %q", s.Connected, s.LastError)
		}
		f.stop()
		f.live(0) // the positive twin: the server renewed its own
		f.listen()
		m.connected()
	})
}

// A machine whose key connected from elsewhere says so, and does not fight: it asks
// rarely, and ends nothing of the other.
func TestCopyIsToldAndDoesNotFlap(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		f.with(func() { f.copies = true; f.epoch++; f.bumpLocked() }) // another machine took over
		time.Sleep(10 * time.Second)
		s := m.daemon.Status()
		if s.Connected || !strings.Contains(s.LastError, "another machine (old-laptop)") {
			t.Fatalf("connected %v, %q", s.Connected, s.LastError)
		}
		f.with(func() { f.copies = false })
		before := get(f, func() int { return len(f.connects) })
		time.Sleep(35 * time.Second) // the back-off's end
		m.connected()
		if n := get(f, func() int { return len(f.connects) }) - before; n != 1 {
			t.Errorf("%d connects in half a minute", n)
		}
		last := get(f, func() string { return f.connects[len(f.connects)-1].GetLastNonce() })
		if first := get(f, func() string { return f.connects[0].GetTakeNonce() }); last != first || first == "" {
			t.Errorf("the machine remembers %q, it had taken with %q", last, first)
		}
	})
}
