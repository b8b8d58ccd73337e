package finding

import (
	"strings"
	"testing"
)

// Addresses that another machine cannot dial are said; those that it may are not.
func TestTold(t *testing.T) {
	for _, c := range []struct {
		runners, broker, want string
		inside                bool
	}{
		{"203.0.113.10:7401", "203.0.113.10:7402", "", true},
		{"runners.example.org:7401", "[2001:db8::1]:7402", "", true},
		{"127.0.0.1:7401", "127.0.0.1:7402", "dial 127.0.0.1:7401, which only the server's own machine can", true},
		{"localhost:7401", "[::1]:7402", "dial localhost:7401, which only", true},
		{"[::]:7401", "203.0.113.10:7402", "[::]:7401, which is every address", false},
		{"0.0.0.0:7401", "127.0.0.1:7402", "0.0.0.0:7401, which is every address", false},
		{"203.0.113.10:7401", ":7402", "the broker is at :7402, which is every address", false},
		{"203.0.113.10:7401", "127.0.0.1:7402", "the broker at 127.0.0.1:7402, which is their own machine to them", false},
		{"127.0.0.1:7401", "203.0.113.10:7402", "which only the server's own machine can, and the broker at 203", false},
	} {
		what, inside := Told(c.runners, c.broker)
		if (what == "") != (c.want == "") || !strings.Contains(what, c.want) || inside != c.inside {
			t.Errorf("%s, %s: %q, %v", c.runners, c.broker, what, inside)
		}
	}
}

// The certificate is for the name, or the address, under which the server is called.
func TestSelfSigned(t *testing.T) {
	for host, want := range map[string]string{"203.0.113.10": "=IP:203.0.113.10 ", "2001:db8::1": "=IP:2001:db8::1 ", "api.example": "=DNS:api.example ", "": "=DNS:HOST "} {
		if got := SelfSigned(host); !strings.Contains(got, want) {
			t.Errorf("%q: %s", host, got)
		}
	}
}
