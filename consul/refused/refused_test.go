package refused_test

import (
	"strings"
	"testing"

	"bivouac/consul"
	"bivouac/consul/refused"
)

// What is pasted where Mend says allows the pair, and no other.
func TestMendAllowsThePair(t *testing.T) {
	const source, destination = "acme--agent-poet", "weather.v1"
	existing := "Kind = \"service-intentions\"\nName = \"weather.v1\"\nSources = [\n  { Name = \"agent-other\", Action = \"allow\" },\n]\n"
	for name, tc := range map[string]struct{ file, where string }{
		"no entry":              {"", "/paths/weather.v1.hcl on the broker's machine"},
		"an entry without name": {existing, "the list Sources of /paths/weather.v1.hcl:2 on the broker's machine"},
	} {
		var set *consul.Set
		load := func(src string) {
			set = consul.NewSet()
			if src != "" {
				in, err := consul.Parse([]byte(src), "/paths/weather.v1.hcl")
				if err != nil {
					t.Fatalf("%s: %v\n%s", name, err, src)
				}
				set = consul.NewSet(in)
			}
		}
		load(tc.file)
		d := set.Decide(source, destination, nil)
		p, ok := refused.Parse("It did not run: " + refused.Sentence(source, destination, d.Reason))
		if d.Allowed || !ok || p.Source != source || p.Destination != destination {
			t.Fatalf("%s: %+v, %+v, %t", name, d, p, ok)
		}
		where, text := p.Mend("/paths")
		if where != tc.where {
			t.Errorf("%s: %q", name, where)
		}
		if p.Entry == "" {
			load(text)
		} else {
			load(strings.Replace(tc.file, "Sources = [\n", "Sources = [\n"+text, 1))
		}
		if !set.Decide(source, destination, nil).Allowed || set.Decide("agent-another", destination, nil).Allowed {
			t.Errorf("%s: what is pasted does not allow exactly the pair:\n%s", name, text)
		}
	}
}

// A directory that the reader may not know is not named; an outright denial, and
// another refusal, have nothing to paste.
func TestMendRefusesToGuess(t *testing.T) {
	p, _ := refused.Parse(refused.Sentence("agent-a", "b", refused.NoEntry))
	if where, _ := p.Mend(""); !strings.Contains(where, "b.hcl in the broker's paths directory") {
		t.Error(where)
	}
	in, err := consul.Parse([]byte("Kind = \"service-intentions\"\nName = \"b\"\nSources = [{ Name = \"*\", Action = \"deny\" }]\n"), "b.hcl")
	if err != nil {
		t.Fatal(err)
	}
	d := consul.NewSet(in).Decide("agent-a", "b", nil)
	for _, text := range []string{refused.Sentence("agent-a", "b", d.Reason), "the tool is not allowed", ""} {
		if p, ok := refused.Parse(text); ok {
			t.Errorf("%q: %+v", text, p)
		}
	}
}
