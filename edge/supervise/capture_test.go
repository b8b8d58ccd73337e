package supervise

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// Both ends of a long output are kept, whatever its pieces, and it stays within
// its limit as valid text.
func TestCapture(t *testing.T) {
	whole := strings.Repeat("äöü-", 5000) + "END"
	for _, piece := range []int{1, 7, 1000, len(whole)} {
		var passed bytes.Buffer
		c := newCapture(1000, func(b []byte) error { passed.Write(b); return nil })
		for b := []byte(whole); len(b) > 0; b = b[min(piece, len(b)):] {
			c.Write(b[:min(piece, len(b))])
		}
		text, cut := c.text()
		if !cut || len(text) > 1000 || !utf8.ValidString(text) || strings.Contains(text, "\uFFFD") {
			t.Errorf("pieces of %d: cut=%v, %d bytes, valid %v: %q", piece, cut, len(text), utf8.ValidString(text), text)
		}
		if !strings.HasPrefix(text, "äöü-äöü") || !strings.HasSuffix(text, "-END") || !strings.Contains(text, "of 35003 bytes are left out") {
			t.Errorf("pieces of %d: %q", piece, text)
		}
		if passed.String() != whole {
			t.Errorf("pieces of %d: %d of %d bytes were passed on", piece, passed.Len(), len(whole))
		}
	}
	c := newCapture(1000, func([]byte) error { return errors.New("the worker is gone") })
	c.Write([]byte("short\xff"))
	if text, cut := c.text(); cut || text != "short\uFFFD" {
		t.Errorf("a short output: %q, cut=%v", text, cut)
	}
}
