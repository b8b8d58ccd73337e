//go:build linux

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// testsOnEngines reads a package's test files and returns the tests that come to
// Each of a fixture, also by way of other functions of the package. Whoever uses a
// fixture in one test need not run all the others for it.
func testsOnEngines(dir string, files []string) ([]string, error) {
	reaches, calls := map[string]bool{}, map[string][]string{}
	fset := token.NewFileSet()
	for _, name := range files {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		fixture := fixtureIn(f)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			each, uses := callsOf(fn.Body, fixture)
			reaches[fn.Name.Name] = reaches[fn.Name.Name] || each
			calls[fn.Name.Name] = append(calls[fn.Name.Name], uses...)
		}
	}
	for found := true; found; {
		found = false
		for name, uses := range calls {
			if !reaches[name] && slices.ContainsFunc(uses, func(u string) bool { return reaches[u] }) {
				reaches[name], found = true, true
			}
		}
	}
	var tests []string
	for _, name := range slices.Sorted(maps.Keys(reaches)) {
		if reaches[name] && strings.HasPrefix(name, "Test") && name != "TestMain" {
			tests = append(tests, name)
		}
	}
	return tests, nil
}

// fixtureIn is the name by which a file calls a fixture; empty when it does not.
func fixtureIn(f *ast.File) string {
	for _, imp := range f.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil || !slices.Contains(fixtures, path) {
			continue
		}
		if imp.Name != nil {
			return imp.Name.Name
		}
		return path[strings.LastIndexByte(path, '/')+1:]
	}
	return ""
}

// callsOf reports whether code calls Each of the fixture, and which names it uses.
func callsOf(body ast.Node, fixture string) (each bool, uses []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && fixture != "" && x.Name == fixture && n.Sel.Name == "Each" {
				each = true
			}
		case *ast.Ident:
			uses = append(uses, n.Name)
		}
		return true
	})
	return each, uses
}
