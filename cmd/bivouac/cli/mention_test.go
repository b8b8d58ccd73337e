//go:build linux

package cli

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"bivouac/test/e2e/stack"
)

const root = "../../.."

// What README, the other documents and every message of the product tell a person
// to run exists: the command, what is below it, and its flags.
func TestMentionedCommandsExist(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binaries")
	}
	bin, err := stack.Build()
	if err != nil {
		t.Fatal(err)
	}
	h := helps{bin: bin, seen: map[string]string{}}
	for _, m := range append(documented(t), sources(t)...) {
		if err := h.exists(m.words, m.exact); err != nil {
			t.Errorf("%s: %q: %v", m.where, strings.Join(m.words, " "), err)
		}
	}
	// The check itself is proven: what does not exist is found, in each way.
	for text, fine := range map[string]bool{
		"run `bivouac-edge status --state DIR`":         true,
		"run `bivouac-edge status --stat DIR`":          false,
		"ask `bivouac edge lst`":                        false,
		"ask bivouac edge lst, and":                     false,
		"bivouac-server bootstrap --token-file FILE":    true,
		"bivouac-broker server-code --outt FILE":        false,
		"another bivouac-edge runs here, so bivouac is": true,
	} {
		var failed error
		for _, m := range mentions("here", text) {
			if err := h.exists(m.words, m.exact); err != nil {
				failed = err
			}
		}
		if (failed == nil) != fine {
			t.Errorf("%s: %v", text, failed)
		}
	}
}

// README's blocks of commands are accepted with their arguments.
func TestReadmeCommandsAreAccepted(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for i, block := range strings.Split(string(b), "```") {
		if i%2 == 0 {
			continue
		}
		for line := range strings.Lines(block) {
			for _, words := range commandsOf(line) {
				found++
				if err := accepts(words); err != nil {
					t.Errorf("%q: %v", strings.TrimSpace(line), err)
				}
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d commands were found in README", found)
	}
}

// mention of a command. An exact one stands alone; otherwise prose may follow.
type mention struct {
	where string
	words []string
	exact bool
}

var binaries = `bivouac(?:-server|-broker|-edge)?`

var (
	spanned = regexp.MustCompile("`(" + binaries + " [^`]*)`")
	loose   = regexp.MustCompile(`(?:^|[^\w/.-])(` + binaries + `(?: [a-z][a-z-]*)+(?: --[a-z-]+)*)([0-9]?)`)
)

// mentions of a text: in backquotes exactly, elsewhere as far as they are words.
func mentions(where, text string) (all []mention) {
	for _, m := range spanned.FindAllStringSubmatch(text, -1) {
		all = append(all, mention{where, shellWords(m[1]), true})
	}
	for _, m := range loose.FindAllStringSubmatch(spanned.ReplaceAllString(text, ""), -1) {
		words := strings.Fields(m[1])
		if m[2] != "" { // the last one goes on with digits: it is no command
			words = words[:len(words)-1]
		}
		all = append(all, mention{where, words, false})
	}
	return all
}

func documented(t *testing.T) (all []mention) {
	for _, name := range []string{"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "vaultpolicy/README.md", "jobs/README.md", "consul/README.md"} {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		n, block := 0, false
		for line := range strings.Lines(string(b)) {
			n++
			where := fmt.Sprintf("%s:%d", name, n)
			if strings.HasPrefix(line, "```") {
				block = !block
			}
			if !block || name != "README.md" { // elsewhere a block may be a drawing
				all = append(all, mentions(where, line)...)
				continue
			}
			for _, words := range commandsOf(line) {
				all = append(all, mention{where, words, true})
			}
		}
	}
	return all
}

// sources are the texts in the product's code: messages, remedies, help.
func sources(t *testing.T) (all []mention) {
	fset := token.NewFileSet()
	for _, top := range []string{"cmd", "edge", "server", "consul", "vaultpolicy"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "v1/") {
				return err
			}
			f, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				if text, err := strconv.Unquote(lit.Value); err == nil {
					all = append(all, mentions(fset.Position(lit.Pos()).String(), text)...)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(all) < 50 {
		t.Errorf("only %d commands are mentioned in the code", len(all))
	}
	return all
}

// helps asks the built binaries what they have.
type helps struct {
	bin  string
	seen map[string]string
}

func (h *helps) of(path []string) (string, error) {
	key := strings.Join(path, " ")
	if text, ok := h.seen[key]; ok {
		return text, nil
	}
	out, err := exec.Command(filepath.Join(h.bin, path[0]), append(path[1:len(path):len(path)], "--help")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s --help: %w\n%s", key, err, out)
	}
	h.seen[key] = string(out)
	return string(out), nil
}

var listed = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*) +\S`)

// exists walks down the words of a command: each must be a command below the one
// before, until an argument, and each flag must be one of the last command's.
func (h *helps) exists(words []string, exact bool) error {
	path := words[:1]
	text, err := h.of(path)
	if err != nil {
		return err
	}
	for i, w := range words[1:] {
		if strings.HasPrefix(w, "-") {
			if name, _, _ := strings.Cut(w, "="); w != "--help" && w != "--version" && !strings.Contains(text, name+" ") && !strings.Contains(text, name+"\n") {
				return fmt.Errorf("%s has no flag %s", strings.Join(path, " "), w)
			}
			continue
		}
		_, below, group := strings.Cut(text, " [command]\n") // below: its commands, under one title or several
		below, _, _ = strings.Cut(below, "\nFlags:")
		if !group || i != len(path)-1 || !regexp.MustCompile(`^[a-z-]+$`).MatchString(w) {
			continue // an argument
		}
		is := false
		for _, m := range listed.FindAllStringSubmatch(below, -1) {
			is = is || m[1] == w
		}
		switch {
		case is:
			path = append(path[:len(path):len(path)], w)
			if text, err = h.of(path); err != nil {
				return err
			}
		case exact || len(path) > 1:
			return fmt.Errorf("%s has no command %s", strings.Join(path, " "), w)
		default:
			return nil // a sentence that begins with the name of the program
		}
	}
	return nil
}
