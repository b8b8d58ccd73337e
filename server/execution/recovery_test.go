package execution

import (
	"slices"
	"strings"
	"testing"
)

// INV-5: the table never sends an effect twice that is not idempotent, never calls
// what nobody knows a failure, and never gives up while somebody may still speak.
func TestRecoveryKeepsItsPromises(t *testing.T) {
	for _, c := range Cells() {
		r, ok := Recover(c)
		if !ok {
			t.Fatalf("%s is listed and has no remedy", c)
		}
		again := c.Class == Reads || c.Class == Idempotent
		told := c.Knower == MachineResult || c.Knower == LogAnswered || c.Knower == SeenDone
		absent := c.Knower == LogAbsent || c.Knower == SeenAbsent || c.Knower == MachineHolds
		open := c.Knower == Here || c.Knower == MachineAway || c.Knower == LogOpen
		for what, broken := range map[string]bool{
			"sent again though it is not idempotent":    r == Resend && !again,
			"sent though its turn has ended":            r == Resend && c.Point != AtSent,
			"dispatched though it may have been sent":   r == Dispatch && c.Point != AtIntent,
			"a failure though nobody knows":             r == Refute && c.Class != Reads && !absent,
			"given up though it only reads":             r == GiveUp && c.Class == Reads,
			"given up though somebody may still speak":  r == GiveUp && open && c.Point != AtOverdue,
			"open for ever":                             c.Point == AtOverdue && r != GiveUp && r != Refute,
			"what was told is not accepted":             told != (r == Accept),
			"inspected though nobody can look":          r == Inspect && c.Class != Inspectable,
			"looked at before the log says it was sent": r == Inspect && c.Knower != LogLost && c.Knower != SeenNothing,
		} {
			if broken {
				t.Errorf("%s: %s: %s", c, r, what)
			}
		}
	}
}

// The table is read by (point, knower): there is one row of each, every word of the
// vocabulary is used, and what nobody has to say at the end is in every class.
func TestRecoveryIsWhole(t *testing.T) {
	seen := map[string]bool{}
	used := map[any]bool{}
	for _, row := range Recovery {
		key := string(row.Point) + "/" + string(row.Knower)
		if seen[key] {
			t.Errorf("two rows for %s", key)
		}
		seen[key] = true
		used[row.Point], used[row.Knower] = true, true
		for _, r := range row.Remedies {
			used[r] = true
		}
	}
	for _, p := range Points {
		if !used[p] {
			t.Errorf("no row at %s", p)
		}
		for _, c := range Classes {
			if _, ok := Recover(Cell{c, p, Nobody}); !ok {
				t.Errorf("nobody knows of a %s effect at %s, and the table does not say what to do", c, p)
			}
		}
	}
	for _, k := range Knowers {
		if !used[k] {
			t.Errorf("no row for %s", k)
		}
	}
	for _, r := range []Remedy{Dispatch, Await, Resend, Ask, Inspect, Accept, Refute, GiveUp} {
		if !used[r] {
			t.Errorf("nothing is answered by %s", r)
		}
	}
	if _, ok := Recover(Cell{Opaque, AtSent, SeenDone}); ok {
		t.Error("an opaque effect has an inspector")
	}
}

func TestRecoveryTable(t *testing.T) {
	text := RecoveryTable()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != len(Recovery)+2 {
		t.Errorf("%d lines for %d rows", len(lines), len(Recovery))
	}
	for _, want := range []string{"| left at | who knows | read | idempotent | inspectable | opaque |",
		"| sent | call log: sent, no answer comes | — | — | inspect | give up |"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
}
