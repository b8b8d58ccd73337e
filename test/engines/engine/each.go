//go:build linux

package engine

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// Each runs test on each of some engines, as a subtest of its name. Where one is not here
// the test is skipped with a word about what brings it, or fails if this run must have it.
func Each(t *testing.T, test func(t *testing.T, p Program), engines ...Engine) {
	t.Helper()
	for _, e := range engines {
		t.Run(e.Name, func(t *testing.T) {
			asked := e.Asked()
			if asked == Never {
				t.Skipf("%s is not asked for in %s", e.Name, AskedVariable)
			}
			p, err := found(e)
			switch {
			case err == nil:
				test(t, p)
			case asked == WhereFound && errors.Is(err, ErrAbsent):
				t.Skipf("NOT TESTED: %v", err)
			default:
				t.Fatal(err)
			}
		})
	}
}

// looks remembers what was found: the search asks the go command.
var looks sync.Map // engine's name → func() (Program, error)

func found(e Engine) (Program, error) {
	look, _ := looks.LoadOrStore(e.Name, sync.OnceValues(func() (Program, error) { return e.Find(context.Background()) }))
	return look.(func() (Program, error))()
}
