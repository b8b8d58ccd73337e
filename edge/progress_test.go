package edge

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/link"
)

// A connection that lives, with heartbeats, and answers no call is made anew, over
// the other transport; one call that gets no answer is not enough.
func TestConnectionWithoutProgressIsMadeAnew(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		epoch := m.daemon.Status().Epoch
		said := func() bool { return get(f, func() bool { return f.facts.GetPaused() }) }
		pause := func(paused bool, unanswered int32) {
			t.Helper()
			f.deaf.Store(unanswered)
			if err := m.dir.SetPaused(paused); err != nil {
				t.Fatal(err)
			}
			m.await("the announcement", 2*time.Minute, func() bool { return said() == paused })
		}
		pause(true, 1)
		if s := m.daemon.Status(); s.Epoch != epoch || s.Transport != link.HTTP3 {
			t.Errorf("one call without an answer: epoch %d after %d, over %s", s.Epoch, epoch, s.Transport)
		}
		pause(false, 2)
		m.connected()
		s := m.daemon.Status()
		if s.Epoch != epoch+1 || s.Transport != link.HTTP2 || !strings.Contains(s.QUICProblem, "calls were not answered") {
			t.Errorf("after two: epoch %d after %d, over %s, %q", s.Epoch, epoch, s.Transport, s.QUICProblem)
		}
		m.await("the way back to QUIC", time.Minute, func() bool { return m.daemon.Status().Transport == link.HTTP3 })
	})
}

// Thousands of reconnects leave nothing behind: no goroutine, no open stream, no
// socket, no memory. Each is another kind of end: the path is lost under the
// connection, the machine slept, the link moves.
func TestReconnectsLeakNothing(t *testing.T) {
	rounds := 10_000
	if testing.Short() {
		rounds = 200
	}
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		round := func(n int) {
			epoch := m.daemon.Status().Epoch
			switch n % 3 {
			case 0:
				m.daemon.link.Drop()
				m.daemon.wakeLink.Ring()
			case 1:
				m.daemon.line.drop(m.daemon.line.get(), errRelink)
			case 2:
				if err := m.daemon.link.Redial(t.Context(), m.daemon.settle); err != nil {
					t.Fatal(err)
				}
			}
			m.await("the next connection", time.Minute, func() bool { s := m.daemon.Status(); return s.Connected && s.Epoch > epoch })
			f.with(func() { f.connects, f.log = nil, nil })
		}
		for n := range 100 { // what is made once is made
			round(n)
		}
		before := footprint()
		for n := range rounds {
			round(n)
		}
		after := footprint()
		t.Logf("%d reconnects: %+v, then %+v", rounds, before, after)
		if after.goroutines > before.goroutines+2 {
			t.Errorf("%d goroutines, before %d", after.goroutines, before.goroutines)
		}
		if grown := int64(after.heap) - int64(before.heap); grown > 2<<20 {
			t.Errorf("%d bytes of memory are left behind", grown)
		}
		if open := f.net.Sockets(); open > 4 {
			t.Errorf("%d sockets are open", open)
		}
		for kind, n := range m.daemon.Status().Streams {
			if n.Open > 1 || n.Open == 1 && kind != "Attach" {
				t.Errorf("%d streams of kind %s are open", n.Open, kind)
			}
		}
	})
}

type foot struct {
	goroutines int
	heap       uint64
}

// footprint of the process when all is quiet.
func footprint() foot {
	time.Sleep(10 * time.Second) // old connections have ended
	synctest.Wait()
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return foot{runtime.NumGoroutine(), m.HeapAlloc}
}
