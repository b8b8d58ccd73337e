package supervise

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What a worker says on its way out is cut where it is too much, and says so; what
// looks like a secret is taken out, over lines too. INV-17.
func TestWhatAWorkerSays(t *testing.T) {
	token := "ghp_" + strings.Repeat("aB3x", 9)
	for name, c := range map[string]struct {
		said []string
		want []string
	}{
		"nothing":          {nil, nil},
		"lines":            {[]string{"panic: no\ngorou", "tine 1\n", "\tat x.go"}, []string{"panic: no", "goroutine 1", "\tat x.go"}},
		"a token":          {[]string{"push with " + token + " failed\n"}, []string{"push with [redacted: github token] failed"}},
		"a token in parts": {[]string{"push with " + token[:9], token[9:] + "\n"}, []string{"push with [redacted: github token]"}},
		"a key": {[]string{"a\n-----BEGIN PRIVATE KEY-----\nMIIEvgIBADANBg\nkqhkiG9w0B\n-----END PRIVATE KEY-----\nb\n"},
			[]string{"a", "[redacted: private key]", "b"}},
		"a key that is cut": {[]string{"-----BEGIN PRIVATE KEY-----\nMIIEvgIBADANBg\n"}, []string{"[redacted: private key]"}},
		"a certificate": {[]string{"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"},
			[]string{"-----BEGIN CERTIFICATE-----", "MIIB", "-----END CERTIFICATE-----"}},
	} {
		if got := heard(c.said...); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for said, want := range map[int]string{maxLogged: "line 99", maxLogged + 1: "1 more lines are left out", 3 * maxLogged: "200 more lines are left out"} {
		var all strings.Builder
		for i := range said {
			fmt.Fprintf(&all, "line %d\n", i)
		}
		got := heard(all.String())
		if last := got[len(got)-1]; last != want || len(got) > maxLogged+1 {
			t.Errorf("of %d lines %d are kept, the last is %q, want %q", said, len(got), last, want)
		}
	}
}

func heard(said ...string) (lines []string) {
	l := &logLines{log: func(line string) { lines = append(lines, line) }}
	for _, s := range said {
		if n, err := l.Write([]byte(s)); n != len(s) || err != nil {
			panic("a log refuses what is said")
		}
	}
	l.flush()
	return lines
}
