package engine_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var fileName = regexp.MustCompile(`\b[a-z_]+\.go\b`)

// The package is read by its guide: every file is named there, and no other.
func TestGuideNamesEveryFile(t *testing.T) {
	doc, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, name := range fileName.FindAllString(doc.Doc.Text(), -1) {
		named[name] = true
		if _, err := os.Stat(name); err != nil {
			t.Errorf("doc.go names %s: %v", name, err)
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, name := range files {
		if name != "doc.go" && !strings.HasSuffix(name, "_test.go") && !named[name] {
			t.Errorf("%s has no place in the guide of doc.go: say what it is, where a prompt meets it", name)
		}
	}
}
