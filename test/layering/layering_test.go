// Package layering holds the one table of who may import whom, and proves it
// over the whole tree: packages, binaries and purity.
package layering

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

type listed struct {
	ImportPath  string
	Name        string
	Dir         string
	Doc         string
	Imports     []string
	Deps        []string
	GoFiles     []string
	TestGoFiles []string
	Standard    bool
}

const module = "bivouac"

func list(t *testing.T, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Name,Dir,Doc,Imports,Deps,GoFiles,TestGoFiles,Standard"}, args...)...)
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func inModule(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, module+"/")
	return rest, ok
}

// within reports whether path is root or below it.
func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

func TestImports(t *testing.T) {
	used := map[string]bool{} // rows, and "row allowance" where somebody needs it
	for _, p := range list(t, "./...") {
		path, _ := inModule(p.ImportPath)
		row, ok := rowOf(path)
		if !ok {
			t.Errorf("%s has no row in the table of layers: add one and say why it may import what it does", path)
			continue
		}
		used[row.pkg] = true
		for _, imp := range p.Imports {
			if in, ok := inModule(imp); ok {
				if !sameRow(in, row) && !allows(row.allow, in, row.pkg, used) {
					t.Errorf("%s imports %s: %s", path, in, row.why)
				}
				continue
			}
			if !strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
				continue // standard library
			}
			if row.external != nil && !allows(row.external, imp, row.pkg, used) {
				t.Errorf("%s imports %s: only %v from outside", path, imp, row.external)
			}
		}
	}
	for _, row := range layers {
		if !used[row.pkg] {
			t.Errorf("the table of layers has a row for %s, which does not exist", row.pkg)
		}
		if row.pkg == "test" {
			continue // may see everything, and need not
		}
		for _, a := range row.allow {
			if !used[row.pkg+" "+a] {
				t.Errorf("%s may import %s and does not: take the door out of its row", row.pkg, a)
			}
		}
	}
}

// sameRow reports a package that stands under the same row: a package with a row
// of its own is another layer, also when it lies in a folder below.
func sameRow(path string, row layer) bool {
	its, ok := rowOf(path)
	return ok && its.pkg == row.pkg
}

// allows finds the entries of a row's list that let path in, and notes them as
// used.
func allows(list []string, path, row string, used map[string]bool) (ok bool) {
	for _, a := range list {
		if within(path, a) {
			ok, used[row+" "+a] = true, true
		}
	}
	return ok
}

// rowOf finds the most specific row.
func rowOf(path string) (layer, bool) {
	best, found := layer{}, false
	for _, l := range layers {
		if within(path, l.pkg) && len(l.pkg) >= len(best.pkg) {
			best, found = l, true
		}
	}
	return best, found
}

func TestBinaryClosures(t *testing.T) {
	for binary, banned := range closures {
		for _, p := range list(t, "./cmd/"+binary) {
			for _, dep := range p.Deps {
				for _, b := range banned {
					root, tree := strings.CutSuffix(b, "/...")
					if dep == root || tree && within(dep, root) {
						t.Errorf("%s links %s: it must never", binary, dep)
					}
				}
			}
		}
	}
}

func TestPackageDocs(t *testing.T) {
	for _, p := range list(t, "./...") {
		generated := strings.HasSuffix(p.ImportPath, "v1") || strings.HasSuffix(p.ImportPath, "v1connect")
		if p.Doc == "" && !generated && len(p.GoFiles) > 0 {
			t.Errorf("%s has no package doc", p.ImportPath)
		}
	}
}

// TestPure bans clocks, randomness, I/O, locks and goroutines in pure packages.
func TestPure(t *testing.T) {
	for _, pkg := range pure {
		dir := filepath.Join("../..", pkg)
		fset := token.NewFileSet()
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files (%v)", pkg, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, bad := range impure(f) {
				t.Errorf("%s: %s in a pure package", fset.Position(bad.pos), bad.what)
			}
		}
	}
}

// TestGoStatements holds the product to its table of go statements.
func TestGoStatements(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t, "./cmd/...", "./consul/...", "./edge/...", "./server/...") {
		path, _ := inModule(p.ImportPath)
		if suite := strings.HasSuffix(path, "test") || strings.Contains(path, "test/"); suite {
			continue
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			file := path + "/" + name
			ast.Inspect(f, func(n ast.Node) bool {
				if n, ok := n.(*ast.GoStmt); ok {
					seen[file] = true
					if goStatements[file] == "" {
						t.Errorf("%s:%d: a go statement that nobody waits for: use the op runner or a group", file, fset.Position(n.Pos()).Line)
					}
				}
				return true
			})
		}
	}
	for file := range goStatements {
		if !seen[file] {
			t.Errorf("the table of go statements has %s, which has none", file)
		}
	}
}

type finding struct {
	pos  token.Pos
	what string
}

func impure(f *ast.File) (found []finding) {
	for _, imp := range f.Imports {
		switch path := strings.Trim(imp.Path.Value, `"`); path {
		case "math/rand", "math/rand/v2", "crypto/rand", "os", "net", "net/http", "io/fs", "os/exec", "database/sql":
			found = append(found, finding{imp.Pos(), "import of " + path})
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, finding{n.Pos(), "go statement"})
		case *ast.SelectorExpr:
			x, _ := n.X.(*ast.Ident)
			if x == nil {
				return true
			}
			switch name := x.Name + "." + n.Sel.Name; name {
			case "time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.NewTimer", "time.NewTicker", "time.AfterFunc", "time.Tick":
				found = append(found, finding{n.Pos(), name})
			case "sync.OnceValue": // a constant that is computed when it is first read
			default:
				if x.Name == "sync" {
					found = append(found, finding{n.Pos(), name})
				}
			}
		}
		return true
	})
	return found
}

// The detector itself is proven: an impure file is found, a pure one is not.
func TestImpureIsFound(t *testing.T) {
	const src = "package p\nimport (\"sync\"; \"time\")\nvar mu sync.Mutex\nfunc f() { go f(); _ = time.Now() }\n"
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(impure(f)); got != 3 {
		t.Errorf("found %d of 3 impurities", got)
	}
	clean, _ := parser.ParseFile(token.NewFileSet(), "q.go", "package q\nimport (\"sync\"; \"time\")\nvar c = sync.OnceValue(func() int { return 1 })\nfunc g(t time.Time) time.Time { return t.Add(time.Second) }\n", 0)
	if got := impure(clean); len(got) != 0 {
		t.Errorf("a pure file was refused: %v", got)
	}
}
