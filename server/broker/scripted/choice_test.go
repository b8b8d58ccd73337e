package scripted

import (
	"fmt"
	"testing"
)

// In each format a rule sees what an argument may be, takes one that is among it,
// and leaves another to the next rule.
func TestChoice(t *testing.T) {
	s, err := Parse([]byte(`
rule "named" {
  when {
    user_matches = "read (?P<path>\\S+) on (?P<machine>.+)"
    choice       = "files_read.machine"
  }
  call "files_read" {
    arguments = { path = user.path, machine = user.machine }
  }
}
rule "which" {
  when { choice = "files_read.machine" }
  text = "${join(" or ", choices)}?"
}
rule "only one" {
  text = "one"
}
`), "s.hcl")
	if err != nil {
		t.Fatal(err)
	}
	const several = `{"type":"object","properties":{"path":{"type":"string"},"machine":{"type":"string","enum":["laptop","Büro PC"]}}}`
	const single = `{"type":"object","properties":{"path":{"type":"string"}}}`
	for format, request := range map[string]string{
		"POST /v1/chat/completions": `{"model":"m","messages":[{"role":"user","content":%q}],"tools":[{"type":"function","function":{"name":"files_read","parameters":%s}}]}`,
		"POST /v1/responses":        `{"model":"m","input":[{"role":"user","content":%q}],"tools":[{"type":"function","name":"files_read","parameters":%s}]}`,
		"POST /v1/messages":         `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":%q}],"tools":[{"name":"files_read","input_schema":%s}]}`,
	} {
		for _, c := range []struct{ said, schema, text, arguments string }{
			{"read a on laptop", several, "", `{"machine":"laptop","path":"a"}`},
			{"read a on büro pc.", several, "", `{"machine":"Büro PC","path":"a"}`},
			{"read a on desktop", several, "laptop or Büro PC?", ""},
			{"read a", several, "laptop or Büro PC?", ""},
			{"read a on laptop", single, "one", ""},
		} {
			asked := dialects[format].read(fmt.Appendf(nil, request, c.said, c.schema))
			if asked == nil {
				t.Fatalf("%s: not understood", format)
			}
			r, vars := s.match(asked.conversation)
			a, err := r.answer(vars)
			got := ""
			if len(a.calls) > 0 {
				got = a.calls[0].arguments
			}
			if err != nil || a.text != c.text || got != c.arguments {
				t.Errorf("%s, %q: %q %s (%v)", format, c.said, a.text, got, err)
			}
		}
	}
}
