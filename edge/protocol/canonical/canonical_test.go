package canonical

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// TestVectors are the samples of RFC 8785: section 3.2.2 to 3.2.4 and appendix B
// as far as its numbers are admitted here.
func TestVectors(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"3.2.2": {
			"{\n  \"numbers\": [333333333.33333329, 1E30, 4.50,\n              2e-3, 0.000000000000000000000000001],\n" +
				`  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",` + "\n  \"literals\": [null, true, false]\n}",
			`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		},
		"3.2.3": {
			`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",` +
				`"\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
			`{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis",` +
				`"€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`,
		},
		"appendix B": {
			`[0, -0, 5e-324, -5e-324, 1.7976931348623157e308, 9007199254740992, -9007199254740992, 9007199254740991.0,
			  1e21, 9.999999999999997e22, 1e23, 0.000001, 1e-7, 333333333.3333332, 4.35, -0.0000033333333333333333]`,
			`[0,0,5e-324,-5e-324,1.7976931348623157e+308,9007199254740992,-9007199254740992,9007199254740991,` +
				`1e+21,9.999999999999997e+22,1e+23,0.000001,1e-7,333333333.3333332,4.35,-0.0000033333333333333333]`,
		},
		"scalar":       {" \"x\"\n", `"x"`},
		"empty":        {`{ }`, `{}`},
		"same text":    {`{"b":{"d":1,"c":2},"a":[]}`, `{"a":[],"b":{"c":2,"d":1}}`},
		"control text": {`"\u007f\u2028<>&"`, "\"\u007f\u2028<>&\""},
	} {
		got, err := Canonical([]byte(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", name, got, err, c.want)
		}
	}
}

// TestRefusals pair each refused document with its nearest accepted twin.
func TestRefusals(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for name, c := range map[string]struct{ bad, good, says string }{
		"duplicate key":            {`{"a":1,"a":2}`, `{"a":1,"b":2}`, "occurs twice"},
		"duplicate key by escape":  {`{"a":1,"\u0061":2}`, `{"a":1,"\u0062":2}`, "occurs twice"},
		"duplicate key in depth":   {`[{"a":{"b":1,"b":1}}]`, `[{"a":{"b":1},"c":{"b":1}}]`, "occurs twice"},
		"trailing value":           {`{} {}`, `[{},{}]`, "follows the document"},
		"trailing text":            {`{}x`, `{} `, "follows the document"},
		"integer beyond 2^53":      {`9007199254740993`, `9007199254740992`, "beyond 2^53"},
		"negative beyond 2^53":     {`-9007199254740993`, `-9007199254740992`, "beyond 2^53"},
		"integer with a fraction":  {`9007199254740993.0`, `9007199254740991.0`, "beyond 2^53"},
		"integer with an exponent": {`1e20`, `1e21`, "beyond 2^53"},
		"long integer":             {`1000000000000000000000`, `"1000000000000000000000"`, "beyond 2^53"},
		"number out of range":      {`1e400`, `1e300`, "out of range"},
		"invalid UTF-8":            {"\"a\xff\"", "\"a\u00ff\"", "UTF-8"},
		"lone surrogate":           {`"\ud83d"`, `"\ud83d\ude00"`, "refused"},
		"surrogates swapped":       {`"\ude00\ud83d"`, `"\ud83d\ude00"`, "refused"},
		"too deep":                 {deep(MaxDepth + 1), deep(MaxDepth), "nested deeper"},
		"nothing":                  {``, `null`, "ends too early"},
		"cut short":                {`{"a":[1`, `{"a":[1]}`, "ends too early"},
		"comma":                    {`[1,]`, `[1]`, "refused"},
		"comment":                  {`{/**/}`, `{}`, "refused"},
		"leading zero":             {`01`, `1`, "refused"},
		"bare control character":   {"\"\n\"", `"\n"`, "refused"},
		"not a number":             {`NaN`, `"NaN"`, "refused"},
		"byte order mark":          {"\ufeff{}", `{}`, "refused"},
	} {
		if got, err := Canonical([]byte(c.bad)); err == nil || !strings.Contains(err.Error(), c.says) || protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%s: %q gave %q, %v, want a refusal with %q", name, c.bad, got, err, c.says)
		}
		if _, err := Canonical([]byte(c.good)); err != nil {
			t.Errorf("%s: the twin %q was refused: %v", name, c.good, err)
		}
	}
}

func TestDigest(t *testing.T) {
	if got, want := Digest(nil), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	a, _ := Canonical([]byte(`{"x":1.0,"y":"\u0041"}`))
	b, _ := Canonical([]byte(`{ "y":"A", "x":1 }`))
	if Digest(a) != Digest(b) {
		t.Errorf("the same document has two digests: %s, %s", a, b)
	}
}

func TestMarshal(t *testing.T) {
	got, err := Marshal(map[string]any{"b": 1, "a": "<é>"})
	if err != nil || string(got) != `{"a":"<é>","b":1}` {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := Marshal(map[string]any{"n": int64(1)<<53 + 1}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("an integer beyond 2^53: %v", err)
	}
	if _, err := Marshal(func() {}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("a function: %v", err)
	}
}

// FuzzCanonical: what is accepted means the same as before, is accepted again,
// and does not change again.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e-7,"\ud83d\ude00"]}`, `{"a":1,"a":2}`, `9007199254740993`, `1e20`, "\"\xff\"", `[[[]]]`, `-0`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		once, err := Canonical(src)
		if err != nil {
			if protocol.CodeOf(err) != protocol.CodeInvalidArgument {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		twice, err := Canonical(once)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%q became %q, then %q, %v", src, once, twice, err)
		}
		var before, after any
		if json.Unmarshal(src, &before) != nil || json.Unmarshal(once, &after) != nil {
			t.Fatalf("%q or %q is no JSON", src, once)
		}
		x, _ := json.Marshal(before)
		y, _ := json.Marshal(after)
		if !bytes.Equal(x, y) && !bytes.Contains(src, []byte("-0")) {
			t.Fatalf("%q means %s, and %q means %s", src, x, once, y)
		}
	})
}

// INV-10: a pin is a digest in the one form in which it is compared.
func TestIsDigest(t *testing.T) {
	made := Digest([]byte("{}"))
	if !IsDigest(made) {
		t.Errorf("%s is none", made)
	}
	for _, s := range []string{"", made + "\n", " " + made, made[:len(made)-1], made + "0", strings.ToUpper(made), strings.TrimPrefix(made, "sha256:"),
		"sha512:" + strings.TrimPrefix(made, "sha256:")} {
		if IsDigest(s) {
			t.Errorf("%q is one", s)
		}
	}
}
