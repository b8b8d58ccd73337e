package state

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Of a supervisor's log the last errors are taken, bounded; without a log there are none.
func TestErrorsOfALog(t *testing.T) {
	a := Attempt{path: t.TempDir()}
	if got := a.Errors(); got != nil {
		t.Errorf("without a log: %q", got)
	}
	var b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&b, "time=%d level=WARN msg=odd\ntime=%d level=ERROR msg=\"number %d\"\n", i, i, i)
	}
	b.WriteString("time=9 level=ERROR msg=" + strings.Repeat("x", 2*maxError) + "\n")
	if err := os.WriteFile(filepath.Join(a.path, "supervise.log"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	got := a.Errors()
	if len(got) != maxErrors || got[0] != `msg="number 4998"` || got[1] != `msg="number 4999"` || len(got[2]) != maxError {
		t.Errorf("got %.200q", got)
	}
}
