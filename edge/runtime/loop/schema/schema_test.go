package schema

import (
	"strings"
	"testing"
)

func TestCompile(t *testing.T) {
	for name, c := range map[string]struct{ src, refused string }{
		"plain":           {`{"type":"object"}`, ""},
		"2020-12":         {`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object"}`, ""},
		"own definitions": {`{"$defs":{"x":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/x"}}}`, ""},
		"another draft":   {`{"$schema":"http://json-schema.org/draft-07/schema#"}`, "only 2020-12"},
		"remote":          {`{"$ref":"https://example.com/schema.json"}`, "stands alone"},
		"file":            {`{"$ref":"file:///etc/passwd"}`, "stands alone"},
		"relative":        {`{"$ref":"other.json"}`, "stands alone"},
		"not a schema":    {`{"type":"objekt"}`, "does not compile"},
		"not JSON":        {`{`, "not JSON"},
		"empty":           {``, "not JSON"},
	} {
		_, err := Compile(c.src)
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: got %v, want an error with %q", name, err, c.refused)
		}
	}
}

func TestValidate(t *testing.T) {
	s, err := Compile(`{"type":"object","additionalProperties":false,"required":["n"],
		"properties":{"n":{"type":"integer","maximum":9007199254740992},"of":{"enum":["a","b"]},"list":{"items":{"type":"string"}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		`{"n":1,"of":"a","list":["x"]}`: "",
		`{"n":1.0}`:                     "",
		`{}`:                            "at '': missing property 'n'",
		`{"n":"1"}`:                     "at '/n': got string, want integer",
		`{"n":1.5}`:                     "at '/n': got number, want integer",
		`{"n":1,"of":"c"}`:              "at '/of': value must be one of 'a', 'b'",
		`{"n":1,"list":[1,"x",2]}`:      "at '/list/0': got number, want string\nat '/list/2': got number, want string",
		`[1]`:                           "at '': got array, want object",
	} {
		got := ""
		for range 5 { // the order of several problems is fixed
			got = ""
			if err := s.Validate([]byte(value)); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s: got %q, want %q", value, got, want)
			}
		}
	}
	many := `{"n":1,"list":[1,2,3,4,5,6,7]}`
	if err := s.Validate([]byte(many)); err == nil || !strings.HasSuffix(err.Error(), "and 2 more") {
		t.Errorf("seven problems: %v", err)
	}
}
