package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

const canary = `c4n"ary/+&<key>=éé-0123`

func value(t *testing.T) Value {
	t.Helper()
	v, err := New(canary)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// INV-17: a value prints as REDACTED, whoever prints it; a plain string does not.
func TestValueNeverPrints(t *testing.T) {
	v := value(t)
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "v", v, "in", struct{ V Value }{v})
	js, err := json.Marshal(map[string]any{"v": v, "p": &v})
	if err != nil {
		t.Fatal(err)
	}
	printed := []string{
		fmt.Sprint(v), fmt.Sprintf("%v %+v %#v %s %q %x %d", v, v, v, v, v, v, v), fmt.Sprintf("%v %+v", struct{ V Value }{v}, &struct{ V Value }{v}),
		string(js), logged.String(), fmt.Errorf("with %w and %v", protocol.Errorf(protocol.CodeInternal, "e"), v).Error(),
	}
	r := NewRedactor(v)
	for _, s := range printed {
		if r.Found(s) || !strings.Contains(s, "REDACTED") {
			t.Errorf("printed %q", s)
		}
	}
	if v.Reveal() != canary || !v.Equal(canary) || v.Equal(canary+"x") {
		t.Error("the value itself was lost")
	}
}

func TestNewRefuses(t *testing.T) {
	for name, text := range map[string]string{"short": "1234567", "long": strings.Repeat("x", MaxBytes+1), "line end": "12345678\n"} {
		if _, err := New(text); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New("12345678"); err != nil {
		t.Errorf("a good value was refused: %v", err)
	}
}

// forms encodes as a hostile or careless upstream might.
func forms(s string) map[string]string {
	js, _ := json.Marshal(map[string]string{"echo": "x" + s + "y"})
	out := map[string]string{
		"plain": "a" + s + "b", "json": string(js),
		"query": url.Values{"k": {s}}.Encode(), "path": "/x/" + url.PathEscape(s), "lower path": strings.ToLower(url.QueryEscape(s)),
		"hex": hex.EncodeToString([]byte("zz" + s + "z")), "HEX": strings.ToUpper(hex.EncodeToString([]byte(s))),
		"escaped slash": strings.ReplaceAll(string(js), "/", `\/`),
	}
	for i := range 3 {
		for j := range 3 {
			whole := strings.Repeat("u", i) + s + strings.Repeat("v", j)
			out[fmt.Sprintf("base64 std %d %d", i, j)] = base64.StdEncoding.EncodeToString([]byte(whole))
			out[fmt.Sprintf("base64 url %d %d", i, j)] = base64.RawURLEncoding.EncodeToString([]byte(whole))
		}
	}
	return out
}

func TestRedactorKnowsEveryEncoding(t *testing.T) {
	r := NewRedactor(value(t))
	innocent := forms("an innocent text of a good length")
	for name, text := range forms(canary) {
		if name == "lower path" {
			continue // the value itself was changed by it
		}
		if got := r.Text(text); !strings.Contains(got, Mark) || strings.Contains(got, canary) {
			t.Errorf("%s: %q left %q", name, text, got)
		}
		if got := r.Text(innocent[name]); got != innocent[name] {
			t.Errorf("%s: innocent text became %q", name, got)
		}
	}
}

func TestStreamRedactsAcrossPieces(t *testing.T) {
	r := NewRedactor(value(t))
	text := "before " + canary + " between " + base64.StdEncoding.EncodeToString([]byte(canary)) + " after"
	for size := 1; size < len(text); size++ {
		var out strings.Builder
		s := r.Stream()
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			out.WriteString(s.Next(rest[:n]))
			rest = rest[n:]
		}
		out.WriteString(s.Rest())
		got := out.String()
		if strings.Contains(got, canary) || r.Found(got) || !strings.HasPrefix(got, "before "+Mark+" between ") || !strings.HasSuffix(got, " after") {
			t.Fatalf("pieces of %d: %q", size, got)
		}
	}
}

// Text that cannot begin a value is never held back.
func TestStreamHoldsNothingInnocent(t *testing.T) {
	s := NewRedactor(value(t)).Stream()
	for _, piece := range []string{"hello ", "world", ".\n"} {
		if got := s.Next(piece); got != piece {
			t.Errorf("%q became %q", piece, got)
		}
	}
	if got := s.Next("x" + canary[:5]); got != "x" {
		t.Errorf("a possible beginning went out: %q", got)
	}
	if got := s.Next("!"); got != canary[:5]+"!" {
		t.Errorf("what was held is lost: %q", got)
	}
}

// INV-17: a value that is written with escapes, in strings of JSON and in strings in
// those, is found; everything else stays as it was written.
func TestDecoded(t *testing.T) {
	r := NewRedactor(value(t))
	escaped := ""
	for _, c := range canary {
		escaped += fmt.Sprintf(`\u%04X`, c)
	}
	inner, err := json.Marshal(`{"b":"` + escaped + `"}`)
	if err != nil {
		t.Fatal(err)
	}
	deeper, err := json.Marshal(`[` + string(inner) + `]`)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"a value": `{"a":"it is ` + escaped + `!"}`, "a name": `it says {"` + escaped + `":1}`, "within a string": `{"a":` + string(inner) + `}`, "deeper": string(deeper),
	} {
		got := r.Decoded(text)
		if !strings.Contains(got, Mark) || strings.Contains(got, `\u0034`) {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, innocent := range []string{`{"a":"\u00e9\u0034 \/ \""}`, `"\u12`, `\`, `"\"`, `"a" \u0034 "b"`, "no JSON"} {
		if got := r.Decoded(innocent); got != innocent {
			t.Errorf("%s became %s", innocent, got)
		}
	}
}
