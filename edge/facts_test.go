package edge

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"

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

// Rules that change while the facts are made count, whoever is done first: with nothing
// known of the sandbox before, and with something.
func TestRulesThatChangeMeanwhileAreOffered(t *testing.T) {
	virtually(t, func(t *testing.T, f *fakeServer, m *machine) {
		meanwhile := func() {}
		m.cfg.MissingFunc = func() string { // asked between the look at the rules and the offer
			now := meanwhile
			meanwhile = func() {}
			now()
			return ""
		}
		d, err := New(m.cfg)
		if err != nil {
			t.Fatal(err)
		}
		p := d.rules.Load().policy
		for slots := 3; slots <= 4; slots++ {
			p.Slots = slots
			meanwhile = func() {
				if err := os.WriteFile(m.dir.Policy(), owner.Render(p), 0o600); err != nil {
					t.Error(err)
				}
				go func() {
					if _, err := d.tickRules(t.Context()); err != nil {
						t.Error(err)
					}
				}()
				synctest.Wait()
			}
			d.look(t.Context(), bootID())
			synctest.Wait()
			if got := d.facts.Load().GetSlots(); int(got) != slots || d.rules.Load().policy.Slots != slots {
				t.Errorf("%d slots are offered, %d are in force, of %d", got, d.rules.Load().policy.Slots, slots)
			}
		}
	})
}
