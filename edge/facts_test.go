package edge

import (
	"strings"
	"testing"

	"bivouac/edge/owner"
	"bivouac/edge/protocol/facts"
	"bivouac/edge/sandbox"
)

// What the system says of a sandbox that does not work is told within the server's
// bounds, whatever it is: a machine is not kept off by the words of its kernel.
func TestFactsAreWithinBounds(t *testing.T) {
	for name, problem := range map[string]string{
		"none": "", "lines": "no groups:\n\tpermission denied", "a terminal's command": "\x1b[2Jgone",
		"long": strings.Repeat("é", 4000), "no text": "\xff\xfe",
	} {
		f := factsOf(owner.Default(), sandbox.Report{Problem: problem})
		if err := facts.Check(f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if (f.GetSandboxProblem() == "") != (problem == "") {
			t.Errorf("%s is told as %q", name, f.GetSandboxProblem())
		}
	}
}
