package edge

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bivouac/edge/device"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
)

// A journal that the disk failed ends the daemon with an error, so that its service
// manager starts the next one, and says so to whoever asks. What was not on the disk
// before its effect does not happen; what happened is inspected, and not done again. A
// turn goes on under its supervisor and is taken up. INV-4, INV-5.
func TestFailedJournalEndsTheDaemon(t *testing.T) {
	for name, after := range map[string]bool{"before the effect": false, "after the effect": true} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
				file, armed := filepath.Join(m.notes, "new.txt"), new(atomic.Bool)
				m.cfg.SyncFunc = func(j *os.File) error {
					if _, err := os.Stat(file); armed.Load() && (err == nil) == after {
						return errors.New("input/output error")
					}
					return j.Sync()
				}
				m.run()
				m.connected()
				turn, w := m.begun(&runnerv1.Work{})
				armed.Store(true)
				id := newAttempt()
				f.offer(id, protocol.KindAction, deviceWork(device.Write, map[string]any{"path": "notes/new.txt", "content": "by the action"}))
				time.Sleep(time.Minute)
				err := m.stop() // it has ended by itself
				if protocol.CodeOf(err) != protocol.CodeDataLoss || !strings.Contains(err.Error(), "input/output error") || !strings.Contains(err.Error(), "bivouac-edge run") {
					t.Fatalf("the daemon ended with %v", err)
				}
				if end, ok := m.dir.Ended(); !ok || !strings.Contains(end.Why, "input/output error") || !strings.Contains(end.Why, "check the disk") {
					t.Errorf("the directory says %v, %v", end, ok)
				}
				if b, _ := os.ReadFile(file); (string(b) == "by the action") != after {
					t.Errorf("the file holds %q", b)
				}
				if r := f.result(id); r != nil {
					t.Errorf("the server heard of %v", r)
				}

				armed.Store(false)
				if after {
					m.write("new.txt", "by hand") // to be seen if it were done again
				}
				m.run()
				m.connected()
				m.await("what is known of the action", time.Minute, func() bool { return f.result(id) != nil })
				if r := f.result(id); (r.GetStatus() == protocol.ResultSucceeded) != after {
					t.Errorf("the outcome is %v", r)
				}
				if b, _ := os.ReadFile(file); after && string(b) != "by hand" || !after && len(b) > 0 {
					t.Errorf("it was done again: %q", b)
				}
				if s := m.daemon.Status(); !strings.Contains(s.Ended, "bivouac-edge ended at") || !s.Connected {
					t.Errorf("status says %q", s.Ended)
				}
				if w.see(func() bool { return w.begins != 1 || w.stopped != "" }) {
					t.Errorf("the turn was begun %d times, stopped %q", w.begins, w.stopped)
				}
				w.finish(&runnerv1.Result{Status: protocol.ResultSucceeded})
				m.await("the turn's result", 10*time.Second, func() bool { return f.result(turn) != nil })
				if err := m.stop(); err != nil {
					t.Errorf("an ordered end: %v", err)
				}
			})
		})
	}
}
