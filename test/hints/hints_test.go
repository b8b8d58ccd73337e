// Package hints holds errors and help to their word: a command that they name
// in backticks, as what to run next, exists.
package hints

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// use is the first word of a command's usage line.
	use = regexp.MustCompile(`\bUse:\s+"([a-z-]+)`)
	// hint is a binary of ours with a command behind it.
	hint = regexp.MustCompile("`(bivouac(?:-[a-z]+)?) ([a-z][a-z-]*)")
)

// sources are where each binary's commands are made.
var sources = map[string]string{
	"bivouac": "cmd/bivouac/cli", "bivouac-edge": "cmd/bivouac-edge",
	"bivouac-server": "cmd/bivouac-server", "bivouac-broker": "cmd/bivouac-broker",
}

func TestNamedCommandsExist(t *testing.T) {
	commands := map[string]map[string]bool{}
	for binary, dir := range sources {
		commands[binary] = map[string]bool{}
		each(t, dir, func(_, text string) {
			for _, m := range use.FindAllStringSubmatch(text, -1) {
				commands[binary][m[1]] = true
			}
		})
		if len(commands[binary]) < 2 {
			t.Fatalf("%s: found the commands %v only", binary, commands[binary])
		}
	}
	found := 0
	for _, dir := range []string{"cmd", "consul", "edge", "server"} {
		each(t, dir, func(path, text string) {
			for _, m := range hint.FindAllStringSubmatch(text, -1) {
				if of, ours := commands[m[1]]; ours && !of[m[2]] {
					t.Errorf("%s says `%s %s`, which is no command", path, m[1], m[2])
				}
				found++
			}
		})
	}
	if found < 20 {
		t.Errorf("only %d hints were found", found)
	}
}

// each reads the Go files below a folder that are no tests.
func each(t *testing.T, dir string, fn func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		fn(path, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
