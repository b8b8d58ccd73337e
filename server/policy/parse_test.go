package policy

import (
	"os"
	"testing"
)

func TestExamples(t *testing.T) {
	for _, name := range []string{"assistant", "coder"} {
		src, err := os.ReadFile("testdata/" + name + ".hcl")
		if err != nil {
			t.Fatal(err)
		}
		a, err := ParseAgent(name+".hcl", src)
		if err != nil {
			t.Fatal(err)
		}
		if a.Name != name {
			t.Errorf("name = %q, want %q", a.Name, name)
		}
		t.Logf("%+v", a)
	}
}
