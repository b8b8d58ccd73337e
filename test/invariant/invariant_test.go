// Package invariant holds ARCHITECTURE.md to its word: an invariant that is
// called enforced is cited in code and proven in a test.
package invariant

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// row is "| 4 | No effect without … | enforced | suite: server/engine |".
var row = regexp.MustCompile(`(?m)^\| (\d+) \| (.+?) \| (enforced|reserved)(?:[^|]*) \| (.+?) \|$`)

var cite = regexp.MustCompile(`INV-(\d+)\b`)

const invariants = 20

func TestEveryInvariantIsTrue(t *testing.T) {
	doc, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	code, proof := cited(t, "../..")
	seen := map[int]bool{}
	for _, m := range row.FindAllStringSubmatch(string(doc), -1) {
		n, _ := strconv.Atoi(m[1])
		seen[n] = true
		if m[3] == "reserved" {
			t.Logf("INV-%d is reserved: %s", n, m[2])
			continue
		}
		if !code[n] {
			t.Errorf("INV-%d is called enforced, and no code cites it", n)
		}
		for _, place := range places(m[4]) {
			if !proof[n][place] {
				t.Errorf("INV-%d is said to be proven in %s, and no test there cites it", n, place)
			}
		}
	}
	for n := 1; n <= invariants; n++ {
		if !seen[n] {
			t.Errorf("ARCHITECTURE.md has no row for INV-%d", n)
		}
	}
}

// places are the folders that a proof names: "suite: storetest, engine; e2e".
func places(proof string) (out []string) {
	for _, p := range strings.FieldsFunc(proof, func(r rune) bool { return r == ';' || r == ',' }) {
		if _, name, kind := strings.Cut(p, ":"); kind {
			p = name
		}
		out = append(out, strings.TrimSpace(p))
	}
	return out
}

// cited collects which invariants the code names, and which the tests of each
// folder do.
func cited(t *testing.T, root string) (code map[int]bool, proof map[int]map[string]bool) {
	t.Helper()
	code, proof = map[int]bool{}, map[int]map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "invariant") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range cite.FindAllStringSubmatch(string(b), -1) {
			n, _ := strconv.Atoi(m[1])
			if !isProof(root, path) {
				code[n] = true
				continue
			}
			if proof[n] == nil {
				proof[n] = map[string]bool{}
			}
			proof[n][filepath.Base(filepath.Dir(path))] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return code, proof
}

// isProof is true of tests, of everything below test/, and of suite packages,
// whose names end in "test".
func isProof(root, path string) bool {
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return false
	}
	rel = filepath.ToSlash(rel)
	return strings.HasSuffix(rel, "_test.go") || strings.HasPrefix(rel, "test/") || strings.HasSuffix(filepath.Dir(rel), "test")
}
