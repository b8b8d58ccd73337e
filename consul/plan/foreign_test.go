package plan

import (
	"strings"
	"testing"
)

// What another broker's policy is about is found in every form in which Consul takes rules,
// and what cannot be read is in the way; this broker's own, with more or less right, is not.
func TestForeign(t *testing.T) {
	want := RulesOf([]string{"tickets"}, "bivouac-broker")
	for _, own := range []string{
		want,
		Rules([]string{"tickets"}),
		"",
		"# nothing\n",
		`service "tickets" { intentions = "write" }`,
		"service tickets {\n  policy = \"read\"\n}\n/* and */ service \"bivouac-broker\" { policy = \"write\" }\n",
		`{"service": {"tickets": {"policy": "read", "intentions": "read"}, "bivouac-broker": {"policy": "write"}}}`,
		"{}",
	} {
		if f := foreign(own, want); len(f) > 0 {
			t.Errorf("in the way for %q: %s", f, own)
		}
	}
	for have, about := range map[string]string{
		"service \"weather\" {\n  intentions = \"read\"\n}\n":                                       `service "weather"`,
		"service weather {\n policy = \"write\"\n}":                                                 `service "weather"`,
		`{"service": {"weather": {"policy": "write"}}}`:                                             `service "weather"`,
		`{"service": {"tickets": {"policy": "read"}}, "key_prefix": {"": {"policy": "read"}}}`:      "key_prefix",
		`{"operator": "write"}`:                                                                     "operator",
		"operator = \"write\"\n":                                                                    "operator",
		"agent_prefix \"\"{ policy = \"read\" }\n/* c */ node_prefix \"x\" { policy = \"read\" }":   `agent_prefix, node_prefix "x"`,
		`service_prefix "tickets" { policy = "read" }`:                                              `service_prefix "tickets"`,
		`key "tickets" { policy = "read" }`:                                                         `key "tickets"`,
		"service \"tickets\" { policy = \"read\" }\nservice = { weather = { policy = \"write\" } }": "service",
		`service "tickets" { intentions = "read" } service "weather" { intentions = "read" }`:       "cannot be read",
		`service "tickets" {`:                                                                       "cannot be read",
		`{"service": {"weather": {"policy": "write"}}, "service": {"tickets": {"policy": "read"}}}`: "cannot be read",
		`{"service": {"tickets": {"policy": "read"}}`:                                               "cannot be read",
		`{"service": [{"weather": {"policy": "write"}}]}`:                                           "a service that is not understood",
		`{"namespace": {"red": {"service": {"weather": {"policy": "write"}}}}}`:                     `a namespace "red" that is not understood`,
		"namespace \"red\" {\n  service \"weather\" {\n  }\n}\n":                                    "a namespace block that is not understood",
		"service \"tickets\" \"weather\" {\n}\n":                                                    "a service block that is not understood",
	} {
		if f := strings.Join(foreign(have, want), ", "); f == "" || !strings.Contains(f, about) {
			t.Errorf("it is about %q, and not %q: %s", f, about, have)
		}
	}
}
