// Package finding is what a doctor says: one checked thing a finding, with what
// was seen, why it matters and the command that mends it. Edge, server, broker
// and command line make them, each of what it depends on and from where it is
// used; one of them may carry what another found.
//
// It guarantees that a report can be read by people and by programs, and that
// its worst finding decides the exit code. It refuses findings without a mend:
// whoever is told of a problem is told what to do. Nothing here looks at
// anything but disks; test it with go test alone.
package finding

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
)

// Level of a finding.
type Level string

// The levels, best first.
const (
	OK      Level = "ok"
	Warning Level = "warning" // works, and may not for long or not as well as it could
	Problem Level = "problem" // something does not work
)

var order = []Level{OK, Warning, Problem}

// Finding is one thing that was checked.
type Finding struct {
	// Where it was checked from: "here", "edge", "server" or "broker".
	Where string `json:"where"`
	// Check names it, stable: "disk", "server.udp".
	Check string `json:"check"`
	Level Level  `json:"level"`
	// What was seen.
	What string `json:"what"`
	// Why it matters and the command that mends it; empty where all is well.
	Why  string `json:"why,omitempty"`
	Mend string `json:"mend,omitempty"`
}

// Report is findings in the order in which they were made.
type Report struct {
	where string
	All   []Finding
}

// From begins a report of what is seen from a place.
func From(where string) *Report { return &Report{where: where} }

// Fine notes what is as it should be.
func (r *Report) Fine(check, format string, args ...any) {
	r.add(check, OK, fmt.Sprintf(format, args...), "", "")
}

// Warn notes what works and should be better.
func (r *Report) Warn(check, what, why, mend string) { r.add(check, Warning, what, why, mend) }

// Bad notes what does not work.
func (r *Report) Bad(check, what, why, mend string) { r.add(check, Problem, what, why, mend) }

func (r *Report) add(check string, l Level, what, why, mend string) {
	if l != OK && mend == "" {
		panic("finding: " + check + " is a " + string(l) + " without a mend: " + what)
	}
	r.All = append(r.All, Finding{Where: r.where, Check: check, Level: l, What: what, Why: why, Mend: mend})
}

// Err notes an error of our own, with the command for a file that is open to
// others, or with mend. It reports whether there was one.
func (r *Report) Err(check string, err error, why, mend string) bool {
	if err == nil {
		return false
	}
	r.Bad(check, err.Error(), why, protocol.Mend(err, mend))
	return true
}

// Add takes over what others found.
func (r *Report) Add(more ...Finding) { r.All = append(r.All, more...) }

// Worst level; OK for an empty report.
func (r *Report) Worst() Level {
	worst := 0
	for _, f := range r.All {
		worst = max(worst, slices.Index(order, f.Level))
	}
	return order[worst]
}

// ExitCode of a doctor: zero unless something does not work; with strict also a
// warning counts.
func (r *Report) ExitCode(strict bool) int {
	if w := r.Worst(); w == Problem || strict && w == Warning {
		return protocol.CodeFailedPrecondition.ExitCode()
	}
	return 0
}

// Verdict is the exit code of a doctor, as an error after everything was said.
type Verdict int

func (Verdict) Error() string { return "" }

// Show writes the report, as JSON or for people, and returns its verdict; nil is
// a deployment that works.
func (r *Report) Show(w io.Writer, asJSON, strict bool) error {
	show := r.Text
	if asJSON {
		show = r.JSON
	}
	if err := show(w); err != nil {
		return err
	}
	if code := r.ExitCode(strict); code != 0 {
		return Verdict(code)
	}
	return nil
}

// JSON writes the report as one document.
func (r *Report) JSON(w io.Writer) error {
	all := r.All
	if all == nil {
		all = []Finding{}
	}
	return json.NewEncoder(w).Encode(struct {
		Worst    Level     `json:"worst"`
		Findings []Finding `json:"findings"`
	}{r.Worst(), all})
}

// Text writes the report for people: what is wrong with its mend, what is well in
// one line each.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	where := ""
	for _, f := range r.All {
		if f.Where != where {
			where = f.Where
			fmt.Fprintf(&b, "seen from %s\n", title[where])
		}
		fmt.Fprintf(&b, "  %s %-18s %s\n", mark[f.Level], f.Check, indent(f.What))
		if f.Why != "" {
			fmt.Fprintf(&b, "         why   %s\n", indent(f.Why))
		}
		if f.Mend != "" {
			fmt.Fprintf(&b, "         mend  %s\n", indent(f.Mend))
		}
	}
	bad, warned := r.count(Problem), r.count(Warning)
	fmt.Fprintf(&b, "%d checked, %d problem(s), %d warning(s)\n", len(r.All), bad, warned)
	_, err := io.WriteString(w, legible.Text(b.String()))
	return err
}

func (r *Report) count(l Level) (n int) {
	for _, f := range r.All {
		if f.Level == l {
			n++
		}
	}
	return n
}

var mark = map[Level]string{OK: "ok     ", Warning: "warning", Problem: "PROBLEM"}

var title = map[string]string{"here": "this terminal", "edge": "this machine's runner", "server": "the server", "broker": "the broker"}

// indent keeps further lines of a text under the first.
func indent(s string) string {
	return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n               ")
}
