package sim

import (
	"os/exec"
	"strings"
	"testing"
)

// within is how many seeds may pass before a planted bug is found.
const within = 50

// TestPlanted proves that the simulation finds what it is for: with the intent
// write, or the compare-and-set of a claim, taken out by a build tag, a seed
// breaks INV-4, or INV-14. Without a tag it builds and runs itself with each.
func TestPlanted(t *testing.T) {
	if planted != "" {
		findPlanted(t)
		return
	}
	for _, tag := range []string{"bug_no_intent", "bug_no_claim"} {
		t.Run(tag, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("go", "test", "-count=1", "-tags", tag, "-run", "^TestPlanted$", "-v", ".")
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "found by seed") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func findPlanted(t *testing.T) {
	for seed := uint64(1); seed <= within; seed++ {
		r := play(t, seed)
		if r.Violation == "" {
			continue
		}
		if !strings.Contains(r.Violation, foundBy+":") {
			t.Fatalf("%s: seed %d breaks something else: %s", planted, seed, r.Violation)
		}
		t.Logf("%s is found by seed %d: %s", planted, seed, r.Violation)
		return
	}
	t.Errorf("%s is not found in %d seeds", planted, within)
}
