package supervise

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// testLog shows the log of a failed test, and fails one that holds the capability. INV-17.
func testLog(t *testing.T) *slog.Logger {
	l := &testWriter{}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if strings.Contains(l.text.String(), capability) {
			t.Error("the log holds the capability")
		}
		if t.Failed() {
			t.Logf("log of the supervisor:\n%s", l.text.String())
		}
	})
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}
