package legible

import (
	"strings"
	"testing"
	"unicode"
)

func TestWhatCannotBeSeenIsEscaped(t *testing.T) {
	for name, c := range map[string]struct{ in, line string }{
		"escape":                {"a\x1b[31mb", `a\u001b[31mb`},
		"bell and delete":       {"\a\x7f", `\u0007\u007f`},
		"C1 control":            {"\u009b", `\u009b`},
		"override":              {"a\u202eb", `a\u202eb`},
		"embedding":             {"\u202a\u202b\u202c\u202d", `\u202a\u202b\u202c\u202d`},
		"isolates":              {"\u2066c\u2067\u2068\u2069", `\u2066c\u2067\u2068\u2069`},
		"marks of direction":    {"\u200e\u200f\u061c", `\u200e\u200f\u061c`},
		"zero width":            {"\u200bx\u200c\u200d\u2060\ufeff", `\u200bx\u200c\u200d\u2060\ufeff`},
		"soft hyphen":           {"ab\u00adc", `ab\u00adc`},
		"tags":                  {"\U000e0041", `\U000e0041`},
		"variation selectors":   {"\ufe0f\U000e0100", `\ufe0f\U000e0100`},
		"joiner of marks":       {"\u034f", `\u034f`},
		"letters without shape": {"\u115f\u1160\u3164\uffa0", `\u115f\u1160\u3164\uffa0`},
		"blank of Braille":      {"\u2800", `\u2800`},
		"line separators":       {"\u2028\u2029\u0085", `\u2028\u2029\u0085`},
		"private use":           {"\ue000\U0010fffd", `\ue000\U0010fffd`},
		"unassigned":            {"\u0378\U0001fffe", `\u0378\U0001fffe`},
		"no character":          {"\ufdd0\uffff", `\ufdd0\uffff`},
		"no UTF-8":              {"a\xff\xc3", `a\xff\xc3`},
		"surrogate in UTF-8":    {"\xed\xa0\x80", `\xed\xa0\x80`},
		"line ends":             {"a\r\nb\tc", `a\r\nb\tc`},
		// twins: what can be seen stays as it is
		"plain":               {`write notes/a b.txt: "hi" \n`, `write notes/a b.txt: "hi" \n`},
		"accents":             {"Grüße, naïve e\u0301", "Grüße, naïve e\u0301"},
		"other scripts":       {"привет 日本語 עברית العربية", "привет 日本語 עברית العربية"},
		"symbols":             {"€ → ✓ 🚀", "€ → ✓ 🚀"},
		"the one that stands": {"\ufffd", "\ufffd"},
	} {
		if got := Line(c.in); got != c.line {
			t.Errorf("%s: %q, want %q", name, got, c.line)
		}
		if got, again := Line(c.in), Line(Line(c.in)); got != again {
			t.Errorf("%s: shown twice it is %q", name, again)
		}
	}
}

// No rune of the classes that the package names gets through, and none vanishes.
func TestNoRuneIsDroppedOrRaw(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r >= 0xd800 && r < 0xe000 {
			continue // no text has them
		}
		shown := Line(string(r))
		if shown == "" {
			t.Fatalf("%U is not shown", r)
		}
		if raw := shown == string(r); raw && (!unicode.IsGraphic(r) || unicode.In(r, unicode.Cf, unicode.Cc, unicode.Co, unicode.Bidi_Control, unicode.Join_Control)) {
			t.Fatalf("%U is shown as it is", r)
		}
	}
}

func TestTextKeepsItsLines(t *testing.T) {
	const in, want = "a\tb\n\x1bc\u202e\r\n", "a\tb\n\\u001bc\\u202e\\r\n"
	if got := Text(in); got != want {
		t.Errorf("text: %q", got)
	}
	var b strings.Builder
	if n, err := (Writer{&b}).Write([]byte(in)); err != nil || n != len(in) || b.String() != want {
		t.Errorf("written: %d, %v, %q", n, err, b.String())
	}
}
