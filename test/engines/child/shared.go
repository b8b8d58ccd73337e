//go:build linux

package child

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// Shared are the servers that the tests of a binary share, one for each program, from the
// first test that opens it to the end of Main.
type Shared[S interface {
	Share()
	Close() error
}] struct {
	mu     sync.Mutex // guards below
	main   bool
	opened map[string]S
	dirs   []string
}

// Main runs the tests of a package, then ends the servers that they shared.
func (h *Shared[S]) Main(m *testing.M) int {
	h.mu.Lock()
	h.main, h.opened = true, map[string]S{}
	h.mu.Unlock()
	code := m.Run()
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, s := range h.opened {
		errs = append(errs, s.Close())
	}
	for _, dir := range h.dirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// Open returns the server of a name, which the first who asks starts in a folder of its own.
func (h *Shared[S]) Open(t testing.TB, name string, start func(dir string) (S, error)) S {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.main {
		t.Fatal("a package that opens a shared server needs a TestMain that calls Main of its fixture")
	}
	if s, ok := h.opened[name]; ok {
		return s
	}
	dir, err := os.MkdirTemp("", "bivouac-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	s, err := start(dir)
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	s.Share()
	h.opened[name], h.dirs = s, append(h.dirs, dir)
	return s
}
