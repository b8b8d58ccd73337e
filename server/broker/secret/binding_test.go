package secret

import (
	"net/http"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

func TestBindingCheck(t *testing.T) {
	for _, good := range []Binding{{"Authorization", "Bearer {value}"}, {"X-Api-Key", "{value}"}, {"Cookie", "session={value}"}} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, bad := range []Binding{{"Host", "{value}"}, {"Content-Length", "{value}"}, {"", "{value}"}, {"A B", "{value}"}, {"X", "none"},
		{"X", "{value}{value}"}, {"X", "{value} {other}"}, {"X", "a\r\nb: {value}"}, {"Proxy-Authorization", "{value}"}} {
		if err := bad.Check(); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// What would leave without its value, or with a placeholder, does not leave.
func TestPutFailsClosed(t *testing.T) {
	of := func(text string) Value {
		v, err := New(text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, tc := range map[string]struct {
		binding Binding
		value   Value
		want    string
	}{
		"bearer":              {Binding{"Authorization", "Bearer {value}"}, of("sk-0123456789"), "Bearer sk-0123456789"},
		"x-api-key":           {Binding{"x-api-key", "{value}"}, of("sk-0123456789"), "sk-0123456789"},
		"no value":            {Binding{"x-api-key", "{value}"}, Value{}, ""},
		"no place for it":     {Binding{"x-api-key", "constant"}, of("sk-0123456789"), ""},
		"placeholder as text": {Binding{"x-api-key", "{value}"}, of("sk-{value}-0123"), ""},
		"two places":          {Binding{"x-api-key", "{value}{value}"}, of("sk-0123456789"), ""},
	} {
		h := http.Header{}
		err := tc.binding.Put(h, tc.value, "model route r")
		if got := h.Get(tc.binding.Header); got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err != nil && (protocol.CodeOf(err) != protocol.CodePolicyDenied || strings.Contains(err.Error(), "sk-")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
