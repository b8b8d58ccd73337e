package edge

import (
	"sync/atomic"
	"testing"
	"time"
)

// sleeper is the clock of a machine that can be put to sleep: it counts the sleep,
// as CLOCK_BOOTTIME does, while timers do not.
type sleeper struct {
	began time.Time
	slept atomic.Int64
}

func (s *sleeper) elapsed() time.Duration {
	return time.Since(s.began) + time.Duration(s.slept.Load())
}

// A machine that wakes up dials at once: out of a long back-off, and away from a
// path that was lost meanwhile and would be noticed only later.
func TestWakingMachineDialsAtOnce(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		clock := &sleeper{began: time.Now()}
		m.cfg.Elapsed, m.cfg.BackoffBase, m.cfg.BackoffMax = clock.elapsed, 20*time.Hour, 20*time.Hour
		f.stop()
		m.run()
		time.Sleep(time.Minute)
		f.listen()
		time.Sleep(10 * time.Second)
		if m.daemon.Status().Connected {
			t.Fatal("it dialled out of a back-off of hours: the test proves nothing")
		}
		clock.slept.Add(int64(8 * time.Hour))
		m.await("the connection after waking up", 2*time.Second, func() bool { return m.daemon.Status().Connected })

		epoch := m.daemon.Status().Epoch
		clock.slept.Add(int64(time.Hour))
		m.await("a new path after waking up", 2*time.Second, func() bool { s := m.daemon.Status(); return s.Connected && s.Epoch > epoch })

		// No sleep, no new path.
		epoch = m.daemon.Status().Epoch
		time.Sleep(time.Minute)
		if got := m.daemon.Status().Epoch; got != epoch {
			t.Errorf("epoch %d after %d without a sleep", got, epoch)
		}
	})
}

// However long its server was away, a machine is back within ten seconds of it, by its
// own timers alone.
func TestMachineIsBackSoonAfterItsServer(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		m.run()
		m.connected()
		for _, away := range []time.Duration{47 * time.Second, 5 * time.Minute, 3 * time.Hour} {
			f.stop()
			time.Sleep(away)
			if m.daemon.Status().Connected {
				t.Fatal("it is connected to no server")
			}
			f.listen()
			m.await("the connection after "+away.String(), 10*time.Second, func() bool { return m.daemon.Status().Connected })
		}
	})
}
