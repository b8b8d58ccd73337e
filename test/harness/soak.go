package harness

import (
	"slices"
	"testing"
	"testing/synctest"

	"bivouac/server/api/apiv1"
)

// Alone is Test for what measures its process: nothing runs beside it.
func Alone(t *testing.T, o Options, body func(t *testing.T, w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { body(t, New(t, o)) })
}

// Dir holds everything that the world has on disk.
func (w *World) Dir() string { return w.dir }

// Debt is what has ended and is not known to be gone, as the first admin sees it.
func (p *Person) Debt() []*apiv1.Cleanup {
	p.w.t.Helper()
	res, err := p.w.admin.Runners.ListCleanups(p.ctx(), &apiv1.ListCleanupsRequest{})
	p.w.must(err)
	return res.GetCleanups()
}

// KeepLast bounds the log to its newest lines, for worlds that live long.
func (l *Log) KeepLast(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep = n
}

// trimLocked lets go of old lines now and then.
func (l *Log) trimLocked() {
	if l.keep > 0 && len(l.lines) > 2*l.keep {
		l.lines = slices.Clone(l.lines[len(l.lines)-l.keep:])
	}
}
