package link_test

import (
	"context"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"bivouac/edge/link"
)

// Thousands of reconnects over the machine's own sockets leave no descriptor and no
// goroutine, on either transport and at either end.
func TestReconnectsLeakNoDescriptor(t *testing.T) {
	rounds := 10_000
	if testing.Short() {
		rounds = 200
	}
	if _, err := os.ReadDir("/proc/self/fd"); err != nil {
		t.Skip("SKIPPED: this system does not list descriptors")
	}
	f := newFixture(t)
	cfg := f.config()
	quic := dial(t, cfg)
	cfg.Network = link.Network{ListenPacket: func(context.Context) (net.PacketConn, error) { return nil, net.ErrClosed }}
	tcp := dial(t, cfg)
	round := func(n int) {
		t.Helper()
		c := []*link.Client{quic, tcp}[n%2]
		if _, err := get(c, "/"); err != nil {
			t.Fatal(err)
		}
		if n%4 < 2 {
			c.Drop()
		} else if err := c.Redial(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 40 {
		round(n)
	}
	settled := func(bound int, count func() int) (n int) {
		for start := time.Now(); time.Since(start) < 2*time.Minute; time.Sleep(20 * time.Millisecond) {
			if n = count(); n <= bound {
				return n
			}
		}
		return n
	}
	quic.Drop()
	tcp.Drop()
	files, before := descriptors(t), runtime.NumGoroutine()
	for n := range rounds {
		round(n)
	}
	quic.Drop()
	tcp.Drop()
	if n := settled(files+4, func() int { return descriptors(t) }); n > files+4 {
		t.Errorf("%d descriptors are open, before %d", n, files)
	}
	if n := settled(before+4, runtime.NumGoroutine); n > before+4 {
		t.Errorf("%d goroutines, before %d", n, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}
