// Command diagrams draws the state machines of the server from their step tables,
// and the recovery table, into ARCHITECTURE.md, between <!-- diagram:NAME --> and
// <!-- /diagram:NAME -->.
// It owns the text between those marks and nothing else. With -check it writes
// nothing and fails when a diagram is not current. A document that is not there
// is no failure: there is nothing to be wrong.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"bivouac/server/execution"
	"bivouac/server/session"
)

func main() {
	file := flag.String("file", "ARCHITECTURE.md", "the document to draw into")
	check := flag.Bool("check", false, "fail when a diagram is not current, and write nothing")
	flag.Parse()
	if err := run(*file, *check); err != nil {
		fmt.Fprintln(os.Stderr, "diagrams:", err)
		os.Exit(1)
	}
}

// run draws or checks one document.
func run(file string, check bool) error {
	before, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "diagrams: there is no %s\n", file)
		return nil
	}
	if err != nil {
		return err
	}
	after, err := draw(string(before), diagrams())
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if after == string(before) {
		return nil
	}
	if check {
		return fmt.Errorf("%s has diagrams that are not current: run make generate", file)
	}
	return os.WriteFile(file, []byte(after), 0o644)
}

// diagrams are all machines and tables by the name of their block.
func diagrams() map[string]string {
	all := map[string]string{}
	for _, machines := range []map[string]string{session.Mermaid(), execution.Mermaid()} {
		for name, text := range machines {
			all[name] = "```mermaid\n" + text + "```\n"
		}
	}
	all["recovery"] = execution.RecoveryTable()
	return all
}

// draw replaces every block of the document. A block of no machine, or one that
// is not closed, is refused; a machine without a block is left out.
func draw(document string, all map[string]string) (string, error) {
	const opening, end = "<!-- diagram:", " -->"
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(document, opening)
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, rest, _ := strings.Cut(rest, end)
		text, known := all[name]
		if !known {
			return "", fmt.Errorf("there is no diagram %q; there are %s", name,
				strings.Join(slices.Sorted(maps.Keys(all)), ", "))
		}
		closing := "<!-- /diagram:" + name + end
		_, rest, closed := strings.Cut(rest, closing)
		if !closed {
			return "", fmt.Errorf("the block of %s is not closed by %s", name, closing)
		}
		fmt.Fprintf(&out, "%s%s%s\n%s%s", opening, name, end, text, closing)
		document = rest
	}
}
