package edge

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// A server that knows the machine says so, and its daemon goes on undisturbed; one that
// revoked it says what to do, and one that is away says neither.
func TestStanding(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		epoch := m.daemon.Status().Epoch
		if known, err := Standing(t.Context(), m.dir, m.cfg.Network); !known || err != nil {
			t.Errorf("a machine that is known: %v, %v", known, err)
		}
		if s := m.daemon.Status(); !s.Connected || s.Epoch != epoch {
			t.Errorf("the question disturbed the daemon: %+v", s)
		}
		if err := m.stop(); err != nil {
			t.Fatal(err)
		}
		f.with(func() { f.forgot = true })
		known, err := Standing(t.Context(), m.dir, m.cfg.Network)
		if known || protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "leave --force") {
			t.Errorf("a machine that was revoked: %v, %v", known, err)
		}
		f.stop()
		if known, err := Standing(t.Context(), m.dir, m.cfg.Network); known || protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("without a server: %v, %v", known, err)
		}
	})
}
