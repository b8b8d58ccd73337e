package secret

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"
)

// Mark stands where a value was.
const Mark = "[redacted]"

// Redactor removes values, in every encoding it knows, from text.
type Redactor struct {
	patterns []string      // longest first, so that no pattern hides a longer one
	begins   [256][]string // patterns by their first byte, longest first
	pairs    pairs         // the first two bytes of each
	longest  int
}

// NewRedactor knows the given values. Zero values are ignored.
func NewRedactor(values ...Value) *Redactor {
	r := &Redactor{}
	for _, v := range values {
		if !v.IsZero() {
			r.patterns = append(r.patterns, encodings(v.text)...)
		}
	}
	slices.SortFunc(r.patterns, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	r.patterns = slices.Compact(r.patterns)
	for _, p := range r.patterns {
		r.longest = max(r.longest, len(p))
		r.begins[p[0]] = append(r.begins[p[0]], p)
		r.pairs.add(p[0], p[1])
	}
	return r
}

// pairs of bytes. A look at each place of a text asks them first, so that it costs the
// same for many patterns as for one.
type pairs [1 << 10]uint64

func (x *pairs) add(a, b byte)      { x[int(a)<<2|int(b)>>6] |= 1 << (b & 63) }
func (x *pairs) has(a, b byte) bool { return x[int(a)<<2|int(b)>>6]&(1<<(b&63)) != 0 }

// Longest is the length of the longest encoding of a known value.
func (r *Redactor) Longest() int { return r.longest }

// Text returns s with every known value replaced by Mark.
func (r *Redactor) Text(s string) string {
	for _, p := range r.patterns {
		s = strings.ReplaceAll(s, p, Mark)
	}
	return s
}

// Found reports whether s contains a known value.
func (r *Redactor) Found(s string) bool {
	return slices.ContainsFunc(r.patterns, func(p string) bool { return strings.Contains(s, p) })
}

// partial is the length of the longest end of text that begins a pattern.
func (r *Redactor) partial(text string) int {
	for n := min(r.longest-1, len(text)); n > 0; n-- {
		end := text[len(text)-n:]
		for _, p := range r.patterns {
			if len(p) > n && strings.HasPrefix(p, end) {
				return n
			}
		}
	}
	return 0
}

// encodings are the forms in which a value may come back: plain, JSON, HTML,
// percent-encoded, hexadecimal, base64 at each of the three alignments, UTF-16. What is
// written with other escapes, or with some of these, is Decoded's.
func encodings(v string) []string {
	out := []string{v, html.EscapeString(v)}
	for _, s := range []string{url.QueryEscape(v), url.PathEscape(v), percentAll(v)} {
		out = append(out, s, lowerPercent(s))
	}
	out = append(out, hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v))))
	for _, js := range jsonForms(v) {
		out = append(out, js, strings.ReplaceAll(js, "/", `\/`))
	}
	for align := range 3 {
		out = append(out, base64At(base64.RawStdEncoding, v, align), base64At(base64.RawURLEncoding, v, align))
	}
	le, be := utf16Bytes(v)
	out = append(out, le, be, byteWise(v), strings.ReplaceAll(v, " ", "+")) // the last is a query without its escapes
	// A value may itself look like an escape, and is read as one where a text is decoded.
	depth := 0
	for l := (&layer{text: v}); l != nil && depth <= deepest; l, depth = l.next(&Redactor{}, mixed), depth+1 {
		out = append(out, l.text)
	}
	// Short left-overs of an alignment would match innocent text.
	return slices.DeleteFunc(out, func(s string) bool { return len(s) < MinBytes })
}

// jsonForms are v inside a JSON string: as Go writes it, without HTML escapes,
// and in ASCII alone.
func jsonForms(v string) []string {
	ascii := func(s string) string {
		var b strings.Builder
		for _, u := range utf16.Encode([]rune(s)) {
			if u < 0x80 {
				b.WriteByte(byte(u))
			} else {
				fmt.Fprintf(&b, `\u%04x`, u)
			}
		}
		return b.String()
	}
	with, without := quoted(v, true), quoted(v, false)
	return []string{with, without, ascii(with), ascii(without)}
}

// quoted is v inside a string of JSON.
func quoted(v string, escapeHTML bool) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(escapeHTML)
	if err := enc.Encode(v); err != nil {
		return ""
	}
	s := strings.TrimSuffix(b.String(), "\n")
	return s[1 : len(s)-1]
}

// base64At is what surely appears when v begins at the given offset modulo 3 of
// something that is encoded as a whole: characters shared with a neighbour's
// bits are left out.
func base64At(enc *base64.Encoding, v string, align int) string {
	s := enc.EncodeToString(append(make([]byte, align), v...))
	if (align+len(v))%3 != 0 {
		s = s[:len(s)-1]
	}
	return s[[3]int{0, 2, 3}[align]:]
}

// percentAll encodes every byte, as some clients do.
func percentAll(v string) string {
	var b strings.Builder
	for _, c := range []byte(v) {
		b.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
	}
	return b.String()
}

// lowerPercent is s with its percent-escapes in lower case.
func lowerPercent(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], strings.ToLower(string(b[i+1:i+3])))
			i += 2
		}
	}
	return string(b)
}

// byteWise is v when each of its bytes is taken for a character.
func byteWise(v string) string {
	var b strings.Builder
	for _, c := range []byte(v) {
		b.WriteRune(rune(c))
	}
	return b.String()
}

func utf16Bytes(v string) (le, be string) {
	var l, b []byte
	for _, u := range utf16.Encode([]rune(v)) {
		l = append(l, byte(u), byte(u>>8))
		b = append(b, byte(u>>8), byte(u))
	}
	return string(l), string(b)
}
