package plan

import (
	"strings"
	"testing"
)

// The broker reads what it asks about, and nothing more: no rule writes, none is about a
// prefix, and each destination has one.
func TestRulesAreLeast(t *testing.T) {
	p := New(DefaultName, []string{"weather", "model-default", "weather"})
	rules := p.Items[0].Want
	for _, never := range []string{"write", "prefix", "acl", "operator", "*"} {
		if strings.Contains(rules, never) {
			t.Errorf("the rules say %q:\n%s", never, rules)
		}
	}
	for _, name := range []string{"weather", "model-default"} {
		if n := strings.Count(rules, `service "`+name+`" {`); n != 1 {
			t.Errorf("%d rules about %s:\n%s", n, name, rules)
		}
	}
	seen := map[string]bool{}
	for _, i := range p.Items {
		if i.For == "" || i.Want == "" || seen[i.Title()] {
			t.Errorf("%+v", i)
		}
		seen[i.Title()] = true
	}
	if len(p.Items) != 5 {
		t.Errorf("%d items", len(p.Items))
	}
}

func TestPrint(t *testing.T) {
	p := New("b", []string{"weather"})
	d := p.FromNothing()
	d[0].State, d[0].Have = Differs, strings.Replace(d[0].Want, "weather", "climate", 1)
	d[2].State, d[2].Have = InTheWay, "allow"
	want := `~ policy b
    - service "climate" { policy = "read" intentions = "read" }
    + service "weather" { policy = "read" intentions = "read" }
+ role b
    policies = "b"
! intention * => *
    action = "allow" -> "deny"
+ service-defaults weather
    protocol = "http"
`
	if got := d.String(); got != want {
		t.Errorf("%s", got)
	}
	if got := (Diff{}).String(); got != "nothing differs\n" {
		t.Error(got)
	}
	if err := d.Apply(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), "somebody decided so") || !strings.Contains(err.Error(), "consul intention delete '*' '*'") {
		t.Errorf("what stands in the way was written over: %v", err)
	}
	d[0].State = InTheWay
	if err := d.Apply(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), "policy b is there, is about service \"climate\" too") || !strings.Contains(err.Error(), "--name NAME") {
		t.Errorf("another broker's policy was written over: %v", err)
	}
}

// The script says everything that Apply would make from nothing.
func TestScript(t *testing.T) {
	text := New("b", []string{"weather"}).Script()
	for _, want := range []string{"set -eu", "consul acl policy create -name b ", `service "weather" {`, "consul acl role create -name b ", "-cas -modify-index 0", `"Kind": "service-intentions"`, `"Protocol": "http"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the script lacks %q:\n%s", want, text)
		}
	}
}
