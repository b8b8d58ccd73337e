package state

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// Of a supervisor that has ended the last errors are its words, whatever wrote them, or the
// last line; bounded, and without what looks like a secret.
func TestLastWords(t *testing.T) {
	a := Attempt{path: t.TempDir()}
	token := "hvs." + strings.Repeat("k", 30)
	for _, c := range []struct {
		log  string
		want []string
	}{
		{"", nil},
		{"time=1 level=INFO msg=fine\n\n", []string{"msg=fine"}},
		{"time=1 level=ERROR msg=\"it broke\"\ntime=2 level=INFO msg=fine\n", []string{`msg="it broke"`}},
		{"time=1 level=INFO msg=fine\nbivouac-edge: no root certificate [failed_precondition]\n", []string{"bivouac-edge: no root certificate [failed_precondition]"}},
		{"panic: nil map\n\ngoroutine 1 [running]:\nmain.main()\n", []string{"panic: nil map"}},
		{"bivouac-edge: it has " + token + "\n", []string{"bivouac-edge: it has [redacted: vault token]"}},
		{"bivouac-edge: " + strings.Repeat("x", maxWords-17) + " " + token + "\n", []string{"bivouac-edge: " + strings.Repeat("x", maxWords-17) + " " + "[redacted: vault token]"[:2]}},
		{strings.Repeat("panic: é\n", 9), []string{"panic: é", "panic: é", "panic: é"}},
		{strings.Repeat("ab", maxWords), []string{strings.Repeat("ab", maxWords/2)}},
	} {
		if err := os.WriteFile(a.Log(), []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := a.LastWords(); !slices.Equal(got, c.want) {
			t.Errorf("of %.80q: %q, want %q", c.log, got, c.want)
		}
	}
}
