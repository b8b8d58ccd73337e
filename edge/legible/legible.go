// Package legible makes text safe to read in a terminal, and to decide on.
//
// It guarantees that every rune which a person cannot see, or which a terminal
// obeys, is shown as an escape (\u202e): controls, formats (bidirectional and
// zero-width ones among them), what Unicode lets a font ignore, private use,
// unassigned code points, odd line ends, and bytes that are no UTF-8. Nothing is
// dropped, so that what is shown is what is bound. It refuses to judge letters
// that look alike. Pure; test it with go test alone.
package legible

import (
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line is s as one line: line ends and tabs are escaped too.
func Line(s string) string { return escape(s, "") }

// Text is s with its line ends and tabs.
func Text(s string) string { return escape(s, "\n\t") }

// Seen reports a rune that a person sees, or a blank: one that Line leaves as it is,
// for what leaves out the others instead of showing them.
func Seen(r rune) bool { return kept(r, "") }

// Writer writes Text of what it is given, each write for itself.
type Writer struct{ W io.Writer }

// Write reports p as written when all of its text is.
func (w Writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.W, Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// escape keeps what is visible, the blank, and the given ones.
func escape(s, keep string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || !kept(r, keep) }) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteString(`\x` + hex(rune(s[i]), 2))
		case kept(r, keep):
			b.WriteRune(r)
		default:
			b.WriteString(name(r))
		}
		i += n
	}
	return b.String()
}

func kept(r rune, keep string) bool {
	return strings.ContainsRune(keep, r) || unicode.IsGraphic(r) && !unseen(r)
}

// unseen reports marks and letters without a shape: by their category they would
// be shown. The last one is the blank of Braille.
func unseen(r rune) bool {
	return unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) || r == '\u2800'
}

func name(r rune) string {
	switch {
	case r == '\n':
		return `\n`
	case r == '\r':
		return `\r`
	case r == '\t':
		return `\t`
	case r > 0xffff:
		return `\U` + hex(r, 8)
	}
	return `\u` + hex(r, 4)
}

func hex(r rune, digits int) string {
	text := strconv.FormatInt(int64(r), 16)
	return strings.Repeat("0", max(0, digits-len(text))) + text
}
