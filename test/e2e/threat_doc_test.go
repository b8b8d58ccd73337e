package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// named is a test of the threat model: `folder` TestName, or TestName/subtest.
var named = regexp.MustCompile("`([a-z0-9/]+)` (Test\\w+)(?:/([\\w_]+))?")

// who may turn against a deployment, as ARCHITECTURE.md writes their headings.
var who = []string{"The owner of a machine", "Sandboxed code, and the worker,", "A broker", "A server", "A stranger on the network",
	"Somebody with a login", "A provider, a tool's API, or an MCP server,"}

// Every "cannot" of the threat model has tests, and every one of them exists.
func TestThreatModelIsProven(t *testing.T) {
	doc, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, model, found := strings.Cut(string(doc), "<!-- threat-model -->")
	model, _, closed := strings.Cut(model, "<!-- /threat-model -->")
	if !found || !closed {
		t.Fatal("ARCHITECTURE.md has no threat model between its markers")
	}
	heads := 0
	for _, w := range who {
		_, rows, found := strings.Cut(model, "**"+w+" cannot**")
		rows, _, _ = strings.Cut(rows, "\n**")
		if !found {
			t.Errorf("nothing says what %q cannot", w)
			continue
		}
		heads++
		if n := cannots(t, w, rows); n == 0 {
			t.Errorf("there is no row for what %q cannot", w)
		}
	}
	if n := strings.Count(model, " cannot**"); n != heads {
		t.Errorf("%d headings, of which this test knows %d", n, heads)
	}
	// The check itself can fail.
	for _, bad := range []string{"`edge/link` TestNoSuchTest", "`no/such/folder` TestRoles", "`edge/sandbox/bubblewrap` TestSuite/NoSuchPart"} {
		if m := named.FindStringSubmatch(bad); m == nil || missing(t, m) == "" {
			t.Errorf("%s is not missed", bad)
		}
	}
}

// cannots checks the rows below one heading and counts them.
func cannots(t *testing.T, who, rows string) (n int) {
	t.Helper()
	for line := range strings.Lines(rows) {
		cell := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cell) != 2 || strings.TrimSpace(cell[0]) == "cannot" || strings.HasPrefix(cell[0], "-") {
			continue
		}
		n++
		tests := named.FindAllStringSubmatch(cell[1], -1)
		if len(tests) == 0 || len(tests) != strings.Count(cell[1], ";")+1 {
			t.Errorf("%s cannot%s: the tests %q cannot be read", who, cell[0], cell[1])
		}
		for _, m := range tests {
			if why := missing(t, m); why != "" {
				t.Errorf("%s cannot%s: %s", who, cell[0], why)
			}
		}
	}
	return n
}

// missing says why a named test does not exist; empty when it does.
func missing(t *testing.T, m []string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", m[1], "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(files, func(name string) bool { return declares(t, name, m[2]) }) {
		return "`" + m[1] + "` has no test " + m[2]
	}
	if part := strings.ReplaceAll(m[3], "_", " "); part != "" && !mentions(t, `"`+part+`"`) {
		return m[2] + " has no part " + part
	}
	return ""
}

func declares(t *testing.T, file, test string) bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Recv == nil && fn.Name.Name == test
	})
}

// mentions looks for the name of a part in the suites of the tree, which other
// packages run.
func mentions(t *testing.T, text string) (found bool) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || found {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || !strings.HasSuffix(filepath.Dir(path), "test") {
			return nil
		}
		b, err := os.ReadFile(path)
		found = strings.Contains(string(b), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
