package sim

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bivouac/server/planted"
)

var within = flag.Int("within", 200, "how many seeds may pass before a planted bug is found")

// bugs are all that can be planted, and what must find each. Three have build tags
// of their own; the tag "planted" has the others, by name.
var bugs = []struct {
	name planted.Bug
	tag  string
	rule string
}{
	{planted.Order, "planted", "INV-1"},
	{planted.Exit, "planted", "INV-2"},
	{planted.Fence, "planted", "INV-3"},
	{"", "bug_no_intent", "INV-4"},
	{planted.Failure, "planted", "INV-5"},
	{planted.Digest, "planted", "INV-6"},
	{"", "bug_any_digest", "INV-6"},
	{planted.Slice, "planted", "INV-7"},
	{planted.Chain, "planted", "INV-8"},
	{planted.Foreign, "planted", "INV-9"},
	{planted.Wide, "planted", "INV-10"},
	{planted.Mint, "planted", "INV-13"},
	{"", "bug_no_claim", "INV-14"},
	{planted.Duplicate, "planted", "INV-15"},
	{planted.Generation, "planted", "INV-16"},
	{planted.Cleanup, "planted", "INV-18"},
	{planted.Budget, "planted", "INV-19"},
	{planted.Clock, "planted", "INV-20"},
}

// foundLine is how the inner run says what it found.
var foundLine = regexp.MustCompile(`found by seed (\d+): .*`)

// TestPlanted proves that the simulation finds what it is for: for each invariant
// one guard is passed over, and a seed breaks that invariant, within 200. It
// builds itself once a tag and runs once a bug. make planted plays it.
func TestPlanted(t *testing.T) {
	if tagged || planted.Chosen != planted.None || os.Getenv("BIVOUAC_RULE") != "" {
		findPlanted(t, os.Getenv("BIVOUAC_RULE"))
		return
	}
	if testing.Short() {
		t.Skip("make planted plays it: four builds, and a run for each bug")
	}
	built := map[string]string{}
	for _, bug := range bugs {
		if built[bug.tag] == "" {
			built[bug.tag] = filepath.Join(t.TempDir(), bug.tag+".test")
			if out, err := exec.Command("go", "test", "-c", "-tags", bug.tag, "-o", built[bug.tag], ".").CombinedOutput(); err != nil {
				t.Fatalf("build with %s: %v\n%s", bug.tag, err, out)
			}
		}
		name := string(bug.name)
		if name == "" {
			name = bug.tag
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(built[bug.tag], "-test.run", "^TestPlanted$", "-test.v", "-within", flag.Lookup("within").Value.String())
			cmd.Env = append(os.Environ(), "BIVOUAC_PLANTED="+string(bug.name), "BIVOUAC_RULE="+bug.rule)
			out, err := cmd.CombinedOutput()
			found := foundLine.FindString(string(out))
			if err != nil || found == "" {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s %s is %s", bug.rule, name, strings.TrimSpace(found))
		})
	}
}

// findPlanted plays seeds until one breaks the rule.
func findPlanted(t *testing.T, rule string) {
	for seed := uint64(1); seed <= uint64(*within); seed++ {
		r := play(t, seed)
		if r.Violation == "" {
			continue
		}
		if !strings.Contains(r.Violation, rule+":") {
			t.Fatalf("%s: seed %d breaks something else than %s: %s\n%s", planted.Chosen, seed, rule, r.Violation,
				strings.Join(r.Trace[max(0, len(r.Trace)-30):], "\n"))
		}
		t.Logf("found by seed %d: %s", seed, strings.TrimSpace(r.Violation))
		return
	}
	t.Errorf("%s is not found in %d seeds", planted.Chosen, *within)
}
