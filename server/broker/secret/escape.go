package secret

import (
	"html"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// mixed escapes begin with one of these, which are their kinds.
const mixed = `\%&`

// longestTail of an escape is what can be a name of HTML or ten digits.
const longestTail = 10

// longestName of a character in HTML, with its semicolon.
const longestName = 32

// unescape appends what the escape at the beginning of s reads as. took is its length in
// s; 0: there is none. open says that s ends before the escape is sure to. strict leaves
// what one layer alone would read, and another may make an escape of another kind.
func unescape(out []byte, s string, strict bool) (_ []byte, took int, open bool) {
	from, left := len(out), false
	switch s[0] {
	case '\\':
		out, took, open = backslash(out, s)
		left = took == 2 && (s[1] == '%' || s[1] == '&')
	case '%':
		out, took, open = percent(out, s)
	default:
		out, took, open = entity(out, s)
		left = took > 0 && s[took-1] != ';'
	}
	if left && strict {
		return out[:from], 0, open
	}
	return out, took, open
}

// backslash reads the escapes of JSON, and those of programs that quote like it.
func backslash(out []byte, s string) ([]byte, int, bool) {
	if len(s) == 1 {
		return out, 0, true
	}
	switch c := s[1]; {
	case c == 'u' && len(s) > 2 && s[2] == '{':
		return braces(out, s)
	case c == 'u':
		return unit(out, s)
	case c == 'U':
		if v, n, open := digits(s[2:], 16, 8, 8); n > 0 {
			return utf8.AppendRune(out, point(v)), 2 + n, false
		} else {
			return out, 0, open
		}
	case c == 'x':
		if v, n, open := digits(s[2:], 16, 2, 2); n > 0 {
			return append(out, byte(v)), 2 + n, false
		} else {
			return out, 0, open
		}
	case '0' <= c && c <= '3':
		if v, n, open := digits(s[1:], 8, 3, 3); n > 0 {
			return append(out, byte(v)), 1 + n, false
		} else {
			return out, 0, open
		}
	case strings.IndexByte("bfnrt", c) >= 0:
		return append(out, "\b\f\n\r\t"[strings.IndexByte("bfnrt", c)]), 2, false
	case '!' <= c && c <= '~' && !alphanumeric(c):
		return append(out, c), 2, false
	}
	return out, 0, false
}

// unit reads \uXXXX or %uXXXX, and both of a pair. Half of a pair is no character: the
// other half may stand under another layer.
func unit(out []byte, s string) ([]byte, int, bool) {
	v, n, open := digits(s[2:], 16, 4, 4)
	if n == 0 {
		return out, 0, open
	}
	if !utf16.IsSurrogate(rune(v)) {
		return utf8.AppendRune(out, rune(v)), 6, false
	}
	rest := s[6:]
	if !strings.HasPrefix(rest, s[:2]) {
		return out, 0, strings.HasPrefix(s[:2], rest)
	}
	low, n, open := digits(rest[2:], 16, 4, 4)
	if pair := utf16.DecodeRune(rune(v), rune(low)); n > 0 && pair != utf8.RuneError {
		return utf8.AppendRune(out, pair), 12, false
	}
	return out, 0, open
}

// braces reads \u{X…}.
func braces(out []byte, s string) ([]byte, int, bool) {
	v, n, open := digits(s[3:], 16, 1, 8)
	switch {
	case n == 0:
		return out, 0, open
	case len(s) == 3+n:
		return out, 0, true
	case s[3+n] != '}':
		return out, 0, false
	}
	return utf8.AppendRune(out, point(v)), 4 + n, false
}

// percent reads %XX, and %uXXXX as old scripts write it.
func percent(out []byte, s string) ([]byte, int, bool) {
	if len(s) > 1 && s[1] == 'u' {
		return unit(out, s)
	}
	v, n, open := digits(s[1:], 16, 2, 2)
	if n == 0 {
		return out, 0, open
	}
	return append(out, byte(v)), 3, false
}

// entity reads a character of HTML: by number or by name, the semicolon may be missing
// where browsers do without.
func entity(out []byte, s string) ([]byte, int, bool) {
	if len(s) == 1 {
		return out, 0, true
	}
	if s[1] == '#' {
		return number(out, s)
	}
	n := 1
	for n < len(s) && n < longestName && alphanumeric(s[n]) {
		n++
	}
	open := n == len(s)
	if n == 1 {
		return out, 0, false
	}
	short := 0 // of a name without a semicolon
	for i := min(n, 7); i > 2 && short == 0; i-- {
		if html.UnescapeString(s[:i]) != s[:i] && !strings.HasSuffix(html.UnescapeString(s[:i]), s[i-1:i]) {
			short = i
		}
	}
	if n < len(s) && s[n] == ';' {
		if u := html.UnescapeString(s[:n+1]); u != s[:n+1] && (short == 0 || u != html.UnescapeString(s[:short])+s[short:n+1]) {
			return append(out, u...), n + 1, false
		}
	}
	if short > 0 {
		return append(out, html.UnescapeString(s[:short])...), short, open
	}
	return out, 0, open
}

// number reads &#65; and &#x41;.
func number(out []byte, s string) ([]byte, int, bool) {
	head, base := 2, 10
	if len(s) > 2 && s[2]|' ' == 'x' {
		head, base = 3, 16
	}
	v, n, open := digits(s[head:], base, 1, len(s))
	n += head
	switch {
	case n == head:
		return out, 0, open
	case n < len(s) && s[n] == ';':
		return utf8.AppendRune(out, point(v)), n + 1, false
	}
	return utf8.AppendRune(out, point(v)), n, n == len(s)
}

// digits reads a number with at least and at most so many digits. n is how many; 0: too
// few, because s ended if open.
func digits(s string, base, least, most int) (v uint32, n int, open bool) {
	for n < len(s) && n < most {
		d := 99
		switch c := s[n]; {
		case '0' <= c && c <= '9':
			d = int(c - '0')
		case 'a' <= c|' ' && c|' ' <= 'f':
			d = int(c|' '-'a') + 10
		}
		if d >= base {
			break
		}
		v = min(v*uint32(base)+uint32(d), utf8.MaxRune+1) // no more can be said of a larger one
		n++
	}
	if n < least {
		return 0, 0, n == len(s)
	}
	return v, n, false
}

// point is a character by its number.
func point(v uint32) rune {
	if v > utf8.MaxRune {
		return utf8.RuneError
	}
	return rune(v)
}

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|' ' && c|' ' <= 'z'
}
