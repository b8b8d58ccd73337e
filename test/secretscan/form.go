package secretscan

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"unicode/utf16"
)

type form struct{ name, text string }

// forms are a secret and its usual encodings.
func forms(v string) []form {
	out := []form{{"plain", v}}
	add := func(name string, texts ...string) {
		for _, t := range texts {
			out = append(out, form{name, t})
		}
	}
	for _, u := range []string{url.QueryEscape(v), url.PathEscape(v), each(v, "%%%02X")} {
		add("url", u, lower(u))
	}
	add("hex", hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v))))
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			add("base64", aligned(enc, []byte(v), shift))
		}
	}
	add("json", quoted(v, true), quoted(v, false), strings.ReplaceAll(quoted(v, false), "/", `\/`), each(v, `\u%04x`), each(v, `\u%04X`))
	add("html", html.EscapeString(v), each(v, "&#%d;"), each(v, "&#x%x;"))
	var le, be []byte
	for _, u := range utf16.Encode([]rune(v)) {
		le, be = binary.LittleEndian.AppendUint16(le, u), binary.BigEndian.AppendUint16(be, u)
	}
	add("utf-16", string(le), string(be))
	return out
}

// each byte in one format.
func each(v, format string) string {
	var b strings.Builder
	for _, c := range []byte(v) {
		fmt.Fprintf(&b, format, c)
	}
	return b.String()
}

// lower is s with its percent-escapes in lower case.
func lower(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], strings.ToLower(string(b[i+1:i+3])))
			i += 2
		}
	}
	return string(b)
}

// quoted is v inside a string of JSON.
func quoted(v string, escapeHTML bool) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(escapeHTML)
	if enc.Encode(v) != nil {
		return ""
	}
	s := strings.TrimSuffix(b.String(), "\n")
	return s[1 : len(s)-1]
}

// aligned is the part of the encoding of anything that has v at an offset of
// shift bytes (modulo three) which does not depend on its neighbours.
func aligned(enc *base64.Encoding, v []byte, shift int) string {
	padded := append(make([]byte, shift), v...)
	out := enc.EncodeToString(padded[:len(padded)-len(padded)%3])
	return out[min(len(out), (shift*4+2)/3):]
}
