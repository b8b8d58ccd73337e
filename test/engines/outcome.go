//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"bivouac/test/engines/engine"
)

// outcome of the tests of one package.
type outcome struct {
	tests   []*test
	figures []string // and rows of tables, which are figures too
	words   string   // that belong to no test: the compiler's, or a panic's
	failed  bool
}

// test is one that ended, or a subtest.
type test struct {
	name   string
	action string // pass, fail or skip
	took   time.Duration
	words  string // without the runner's own marks
}

// event is a line of go test -json.
type event struct {
	Action, Test, Output string
	Elapsed              float64 // seconds
}

// read takes in the whole of a run.
func read(r io.Reader) (*outcome, error) {
	o, running := &outcome{}, map[string]*test{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			o.words += lines.Text() + "\n"
			continue
		}
		t := running[e.Test]
		if t == nil {
			t = &test{name: e.Test}
			running[e.Test] = t
		}
		switch e.Action {
		case "output", "build-output":
			if line := strings.TrimSpace(e.Output); !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
				t.words += e.Output
			}
			if _, figure, ok := strings.Cut(e.Output, "bench name="); ok {
				o.figures = append(o.figures, "bench name="+strings.TrimSpace(figure))
			} else if row := strings.TrimSpace(e.Output); strings.HasPrefix(row, "|") {
				o.figures = append(o.figures, row)
			}
		case "pass", "fail", "skip":
			o.failed = o.failed || e.Action == "fail"
			t.action, t.took = e.Action, time.Duration(e.Elapsed*float64(time.Second))
			if e.Test != "" {
				o.tests = append(o.tests, t)
			}
		}
	}
	for name, t := range running {
		if name == "" || t.action == "" { // the package's, or a test that never ended
			o.words += t.words
		}
	}
	return o, lines.Err()
}

// embeddedName stands where an engine's name does, for tests that need none.
const embeddedName = "embedded"

// on is the engine that a test ran on: the fixtures name a subtest after it.
func (t *test) on() string {
	if parts := strings.Split(t.name, "/"); len(parts) > 1 {
		for _, e := range engine.All() {
			if parts[1] == e.Name {
				return e.Name
			}
		}
	}
	return embeddedName
}

func (o *outcome) hasSubtests(name string) bool {
	return slices.ContainsFunc(o.tests, func(t *test) bool { return strings.HasPrefix(t.name, name+"/") })
}

// print says what came of a package on each engine that is here. Of tests that
// failed and that were skipped it shows their words.
func (o *outcome) print(w io.Writer, pkg string, here []string) {
	for _, name := range append([]string{embeddedName}, here...) {
		sums, took := map[string]int{}, time.Duration(0)
		for _, t := range o.tests {
			if t.on() != name {
				continue
			}
			whole := !o.hasSubtests(t.name)
			if whole {
				sums[t.action]++
			}
			if top := strings.Count(t.name, "/"); top == 0 && (whole || !o.runsOnEngines(t.name)) || top == 1 && name != embeddedName {
				took += t.took
			}
			if whole && t.action != "pass" {
				fmt.Fprintf(w, "%s %s: %s\n", t.action, t.name, strings.TrimSpace(t.words))
			}
		}
		if len(sums) > 0 {
			fmt.Fprintf(w, "suite %s on %s: passed=%d failed=%d skipped=%d took=%.1fs\n",
				pkg, name, sums["pass"], sums["fail"], sums["skip"], took.Seconds())
		}
	}
	for _, f := range o.figures {
		fmt.Fprintln(w, f)
	}
	if o.failed {
		fmt.Fprint(w, o.words)
	}
}

func (o *outcome) runsOnEngines(name string) bool {
	return slices.ContainsFunc(o.tests, func(t *test) bool { return strings.HasPrefix(t.name, name+"/") && t.on() != embeddedName })
}
