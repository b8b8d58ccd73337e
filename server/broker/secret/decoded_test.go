package secret

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
	"unicode/utf16"

	"bivouac/test/secretscan"
)

// token needs escapes in JSON, in HTML and in addresses.
const token = `k-c2VjcmV0+value/"of"&<the> broker==é😀`

// scripts write a value as languages and their libraries do.
var scripts = map[string]func(string) string{
	"JSON, all of it": func(s string) string { return eachUnit(s, `\u%04x`) },
	"JSON, as .NET":   strings.NewReplacer("+", `\u002B`, `"`, `\u0022`).Replace,
	"JSON, slashes":   strings.NewReplacer("/", `\/`, `"`, `\"`, "é", `\u00e9`, "😀", `\ud83d\ude00`).Replace,
	"bytes":           func(s string) string { return eachByte(s, `\x%02x`) },
	"octal":           func(s string) string { return eachByte(s, `\%03o`) },
	"points":          func(s string) string { return eachRune(s, `\u{%x}`) },
	"long points":     func(s string) string { return eachRune(s, `\U%08X`) },
	"percent":         func(s string) string { return eachByte(s, `%%%02X`) },
	"percent, some":   strings.NewReplacer("+", "%2b", `"`, "%22", "é", "%C3%A9").Replace,
	"a query":         strings.NewReplacer("+", "%2b", " ", "+").Replace,
	"percent, old":    func(s string) string { return eachUnit(s, `%%u%04X`) },
	"HTML":            func(s string) string { return eachRune(s, "&#%d;") },
	"HTML, hex":       func(s string) string { return eachRune(s, "&#X%x;") },
	"HTML, no ends":   strings.NewReplacer("&", "&amp", "<", "&lt", ">", "&gt", `"`, "&#34").Replace,
	"HTML, names":     strings.NewReplacer("&", "&amp;", "+", "&plus;", "/", "&sol;", "=", "&equals;", "é", "&eacute;").Replace,
	"JSON in JSON":    func(s string) string { return quoted(eachUnit(s, `\u%04x`), true) },
	"HTML in percent": func(s string) string { return eachByte(eachRune(s, "&#%d;"), "%%%02x") },
	"three":           func(s string) string { return quoted(url.QueryEscape(eachRune(s, "&#x%x;")), true) },
}

func eachRune(s, format string) string {
	var b strings.Builder
	for _, r := range s {
		fmt.Fprintf(&b, format, r)
	}
	return b.String()
}

func eachByte(s, format string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, format, c)
	}
	return b.String()
}

func eachUnit(s, format string) string {
	var b strings.Builder
	for _, u := range utf16.Encode([]rune(s)) {
		fmt.Fprintf(&b, format, u)
	}
	return b.String()
}

func known(t testing.TB, text string) *Redactor {
	t.Helper()
	v, err := New(text)
	if err != nil {
		t.Fatal(err)
	}
	return NewRedactor(v)
}

// INV-17: escapes hide nothing, wherever they stand: in JSON that is whole or cut, after
// a quote in plain text, in a string with a raw line end, in no string at all. What
// stands around a value is as it was.
func TestDecodedNeedsNoJSON(t *testing.T) {
	r, scan := known(t, token), secretscan.New(secretscan.Secret{Name: "token", Value: token})
	for in, around := range map[string][2]string{
		"whole":      {`{"log":"C:\\n\u00e9 `, ` 5%"}`},
		"cut":        {`{"headers":"Authorization: Bearer `, ` Accept: *`},
		"a quote":    {`a 5" disk answered {"log":"`, `"}`},
		"a line end": {"said \"see:\n", "\""},
		"no quotes":  {"Authorization=", "&more=%41%"},
		"the end":    {"Authorization=", ""},
	} {
		for name, write := range scripts {
			text := around[0] + write(token) + around[1]
			if got, want := r.Decoded(text), around[0]+Mark+around[1]; got != want {
				t.Errorf("%s, %s: %s", in, name, got)
			}
			if got := r.Decoded(around[0] + write("an innocent one") + around[1]); got != around[0]+write("an innocent one")+around[1] {
				t.Errorf("%s, %s: harmless text became %s", in, name, got)
			}
		}
	}
	// What stands before it may make an escape of its beginning.
	hex := "c2VjcmV0+value/of+the+broker=="
	for _, before := range []string{"%", "%4", `\`, `\\\`, "&", "&#", `\u`, `\u00`} {
		text := before + strings.ReplaceAll(hex, "+", `\u002B`) + " after"
		if got := known(t, hex).Decoded(text); !strings.HasSuffix(got, Mark+" after") {
			t.Errorf("after %s: %s", before, got)
		}
		if hits := scan.Bytes("", []byte(r.Decoded(before+scripts["JSON in JSON"](token)))); len(hits) != 0 {
			t.Errorf("after %s: %v", before, hits)
		}
	}
	// A value that itself looks like an escape.
	if got := known(t, `p%41&amp;\u0042-secret`).Decoded(`is p%41&amp;\u0042-secr\u0065t.`); got != "is "+Mark+"." {
		t.Errorf("a value with escapes: %s", got)
	}
}

// INV-17: where a text was cut, not even the beginning of a value is left, in whatever
// escapes it is written, nor the half of an escape; what stands before is.
func TestCutLeavesNoBeginning(t *testing.T) {
	r := known(t, token)
	const before = `{"a":"Bearer `
	for name, write := range scripts {
		whole := before + write(token)
		for n := len(before); n <= len(whole); n++ {
			got := r.Cut(whole[:n])
			if got != before && (got != before+Mark || n < len(whole)-len("%u00")) {
				t.Errorf("%s, cut at %d: %q", name, n-len(before), got)
			}
		}
		if got := r.Cut(whole + ` and \u00e9 more`); got != before+Mark+` and \u00e9 more` {
			t.Errorf("%s, cut after it: %q", name, got)
		}
	}
	for _, harmless := range []string{"", "nothing!", `{"a":"\u00e9!`, "50% of it!", `a&amp;!`} {
		if got := r.Cut(harmless); got != harmless {
			t.Errorf("%q became %q", harmless, got)
		}
	}
}

// writer of a layer: which characters it writes with escapes, when it need not, is in
// bits.
type writer struct {
	kind byte
	bits []byte
}

func (w writer) write(s string) string {
	var b strings.Builder
	i := 0
	for _, r := range s {
		take := len(w.bits) > 0 && w.bits[i/8%len(w.bits)]>>(i%8)&1 == 1
		i++
		switch {
		case w.kind == 0 && (take || r < ' ' || r == '"' || r == '\\'):
			b.WriteString(eachUnit(string(r), `\u%04X`))
		case w.kind == 1 && (take || r == '%'):
			b.WriteString(eachByte(string(r), "%%%02x"))
		case w.kind == 2 && (take || r == '&') && r != 0 && r != '\r' && (r < 0x80 || r > 0x9f): // HTML cannot write these
			b.WriteString(eachRune(string(r), "&#%d;"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func (w writer) read(s string) (out string, err error) {
	switch w.kind {
	case 0:
		err = json.Unmarshal([]byte(`"`+s+`"`), &out)
	case 1:
		out, err = url.PathUnescape(s)
	default:
		out = html.UnescapeString(s)
	}
	return out, err
}

// INV-17: a value in any text, under any nesting of escapes, is not in what comes out,
// nor in what that reads as, layer by layer; a text without it comes out as it was.
func FuzzDecoded(f *testing.F) {
	f.Add("before ", " after", []byte{0, 0xff}, uint16(30))
	f.Add(`{"a":"`, `"}`, []byte{0, 0x55, 1, 0x33, 2, 0x0f}, uint16(90))
	f.Add(`C:\`, `%4`, []byte{2, 0xff, 1, 0xff, 0, 0x7f}, uint16(200))
	f.Add(`a 5" %`, `&am`, []byte{1, 0xaa, 1, 0xaa, 0, 0}, uint16(60))
	f.Add("000", "Z0", []byte("0U1B00"), uint16(54))
	f.Add(`000"`, "", []byte("0U0B1U"), uint16(54))
	f.Add("\\u00\n", `\`, []byte{0, 1, 0, 1, 0, 1}, uint16(10))
	scan := secretscan.New(secretscan.Secret{Name: "token", Value: token})
	other := rand.Text() // no text holds it
	f.Fuzz(func(t *testing.T, before, after string, plan []byte, cut uint16) {
		before, after = strings.ToValidUTF8(before, ""), strings.ToValidUTF8(after, "")
		if len(before)+len(after) > 256 || strings.Contains(before+after, token[:4]) {
			t.Skip()
		}
		r := known(t, token)
		var layers []writer
		for i := 0; i+1 < min(len(plan), 6); i += 2 {
			layers = append(layers, writer{plan[i] % 3, plan[i+1 : i+2]})
		}
		written, inside := before+token+after, token
		for _, w := range layers {
			written, inside = w.write(written), w.write(inside)
		}
		for _, text := range []string{written, before + inside + after} {
			if got := known(t, other).Decoded(text); got != text {
				t.Fatalf("%q without it became %q", text, got)
			}
			got := r.Decoded(r.Text(text))
			if strings.Contains(got, inside) || !strings.Contains(got, Mark) || len(scan.Bytes("", []byte(got))) != 0 {
				t.Fatalf("%q became %q", text, got)
			}
		}
		shown := map[string]bool{r.Decoded(r.Text(written)): true, r.Cut(r.Text(written[:int(cut)%(len(written)+1)])): false}
		for got, whole := range shown {
			for i := len(layers) - 1; i >= 0; i-- {
				next, err := layers[i].read(got)
				if err != nil {
					if whole {
						t.Fatalf("%q cannot be read any more: %v", got, err)
					}
					break
				}
				if got = next; len(scan.Bytes("", []byte(got))) != 0 || strings.Contains(got, token[:4]) {
					t.Fatalf("%q shows it in %q", written, got)
				}
			}
		}
	})
}
