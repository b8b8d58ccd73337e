package edge

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/state"
)

// A machine whose leaving the server has heard ends as one that left, also when the
// answer is lost, once or each time. One that was revoked is told to enrol again.
func TestLeavingMachineEndsAsOne(t *testing.T) {
	for _, lost := range []int{0, 1, 2} {
		virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
			f.with(func() { f.lostLeaves = lost })
			m.run()
			m.connected()
			if _, err := m.daemon.leave(t.Context(), false); (err != nil) != (lost == 2) {
				t.Errorf("%d answers lost: %v", lost, err)
			}
			f.stop()
			f.listen() // it meets the server again, if it is still there
			time.Sleep(time.Minute)
			if err := m.stop(); err != nil {
				t.Errorf("%d answers lost: the daemon ended with %v", lost, err)
			}
		})
	}
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		f.with(func() { f.forgot = true })
		f.stop()
		f.listen()
		time.Sleep(time.Minute)
		if err := m.stop(); protocol.CodeOf(err) != protocol.CodePermissionDenied || !strings.Contains(err.Error(), "enrol again") {
			t.Errorf("a machine that was revoked ended with %v", err)
		}
	})
}

// A name that does not resolve is said as that, before anything is written.
func TestJoinNeedsANameThatResolves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		code, _ := f.invite(f.root.Fingerprint())
		p := f.params(t, code.Reveal())
		p.Network.ResolveUDP = func(context.Context, string) (net.Addr, error) { return nil, errors.New("no such host") }
		named := p
		named.Server = "https://server:7401"
		if _, err := Join(t.Context(), named); protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), "the name server cannot be resolved") {
			t.Errorf("a name that does not resolve: %v", err)
		}
		if _, err := os.Stat(p.State); err == nil {
			t.Error("it left a state directory")
		}
		p.Network.ResolveUDP = f.net.Network("10.0.0.3").ResolveUDP
		if _, err := Join(t.Context(), p); err != nil {
			t.Errorf("by its address: %v", err)
		}
	})
}

// What a join that failed has left is wiped by leave; the owner's policy stays. A
// machine that never tried has nothing to wipe.
func TestLeaveAfterAJoinThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t)
		code, _ := f.invite(f.root.Fingerprint())
		p := f.params(t, code.Reveal())
		f.stop()
		if _, err := Join(t.Context(), p); err == nil {
			t.Fatal("joined no server")
		}
		for _, want := range []bool{true, false} {
			dir, err := state.At(p.State)
			if err != nil {
				t.Fatal(err)
			}
			if wiped, err := Forget(dir); wiped != want || err != nil {
				t.Errorf("wiped %v, %v; want %v", wiped, err, want)
			}
			if _, err := os.Stat(filepath.Join(p.State, "device.key")); err == nil {
				t.Error("the key is left")
			}
		}
		m := enrolled(t, f)
		if wiped, err := Forget(m.dir); wiped || err != nil || !m.dir.Joined() {
			t.Errorf("a runner was forgotten: %v, %v", wiped, err)
		}
	})
}
