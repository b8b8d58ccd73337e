package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// inherit names the functions that give a child an environment otherwise than by a list
// of its own, with the reason.
var inherit = map[string]string{
	"cmd/bivouac/cli/tree.go command":                 "of its own environment it keeps what keepEnv names",
	"edge/sandbox/bubblewrap/layout_linux.go confine": "a breach that tests of the sandbox open, to see that it is found",
	"edge/sandbox/bubblewrap/start_linux.go born":     "what start has made it: none",
	"edge/worker/outward/outward.go Run":              "it runs in a sandbox, whose whole environment the supervisor has chosen",
}

// A child inherits the whole environment of who starts it where nobody says otherwise,
// and with it the tokens that its person or its operator keeps there (VAULT_TOKEN,
// BAO_TOKEN, NOMAD_TOKEN, CONSUL_HTTP_TOKEN). So whoever starts one says what it gets.
func TestNoChildInheritsTheEnvironment(t *testing.T) {
	root := filepath.Join("..", "..")
	used := map[string]bool{}
	for _, dir := range []string{"cmd", "consul", "edge", "jobs", "server", "terraform", "vaultpolicy"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || strings.HasSuffix(d.Name(), "test") || d.Name() == "attacker"):
				return fs.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			for _, bad := range careless(file) {
				where := filepath.ToSlash(rel) + " " + bad.function
				if used[where] = true; inherit[where] == "" {
					t.Errorf("%s: %s: set the child's Env to what it needs", where, bad.what)
				}
			}
			return err
		})
		if err != nil && !strings.Contains(err.Error(), "no such file") {
			t.Fatal(err)
		}
	}
	for where := range inherit {
		if !used[where] {
			t.Errorf("%s starts no child with an environment that is not its own: take it out of the table", where)
		}
	}
}

type fault struct{ function, what string }

// careless functions of a file: they start a program without saying its environment, or
// take all of their own.
func careless(file *ast.File) (out []fault) {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		starts, says, all := "", false, false
		ast.Inspect(f, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.SelectorExpr:
				of, _ := x.X.(*ast.Ident)
				switch name := x.Sel.Name; {
				case of == nil:
				case of.Name == "exec" && (name == "Command" || name == "CommandContext"), of.Name == "os" && name == "StartProcess":
					starts = of.Name + "." + name
				case of.Name == "os" && name == "Environ":
					all = true
				}
			case *ast.CompositeLit:
				if t, ok := x.Type.(*ast.SelectorExpr); ok && t.Sel.Name == "Cmd" {
					starts = "exec.Cmd"
				}
			case *ast.AssignStmt:
				says = says || slices.ContainsFunc(x.Lhs, func(e ast.Expr) bool {
					s, ok := e.(*ast.SelectorExpr)
					return ok && s.Sel.Name == "Env"
				})
			case *ast.KeyValueExpr:
				if k, ok := x.Key.(*ast.Ident); ok && k.Name == "Env" {
					says = true
				}
			}
			return true
		})
		switch {
		case all:
			out = append(out, fault{f.Name.Name, "os.Environ"})
		case starts != "" && !says:
			out = append(out, fault{f.Name.Name, starts + " without Env"})
		}
	}
	return out
}

// The look finds what it is for, and lets pass what is right.
func TestCareless(t *testing.T) {
	for src, want := range map[string]string{
		`func a() { exec.Command("x").Run() }`:                                  "exec.Command without Env",
		`func a() { c := exec.CommandContext(nil, "x"); c.Run() }`:              "exec.CommandContext without Env",
		`func a() { c := exec.Command("x"); c.Env = os.Environ(); c.Run() }`:    "os.Environ",
		`func a() { os.StartProcess("x", nil, p) }`:                             "os.StartProcess without Env",
		`func a() { c := exec.Command("x"); c.Dir, c.Env = "/", env; c.Run() }`: "",
		`func a() { os.StartProcess("x", nil, &os.ProcAttr{Env: []string{}}) }`: "",
		`func a() { c := &exec.Cmd{Path: "x", Env: []string{}}; c.Run() }`:      "",
		`func a() { c := &exec.Cmd{Path: "x"}; c.Run() }`:                       "exec.Cmd without Env",
		`func a() { fmt.Println("no child") }`:                                  "",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", "package a\n"+src, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range careless(file) {
			got += f.what
		}
		if got != want {
			t.Errorf("%s\nfound %q, not %q", src, got, want)
		}
	}
}
