//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// said is what go test -json says of a package: one test that needs no engine, and
// one that ran on Vault, was passed over on OpenBao, and failed in one part.
const said = `{"Action":"output","Test":"TestParse","Output":"=== RUN TestParse\n"}
{"Action":"pass","Test":"TestParse","Elapsed":0.5}
{"Action":"output","Test":"TestGrant/vault/Create","Output":"    grant_test.go:9: bench name=vault_mint_p50 value=3 unit=ms\n"}
{"Action":"output","Test":"TestGrant/vault/Create","Output":"        | accessor | 3 |\n"}
{"Action":"pass","Test":"TestGrant/vault/Create","Elapsed":1}
{"Action":"output","Test":"TestGrant/vault/Revoke","Output":"    grant_test.go:20: still alive\n"}
{"Action":"fail","Test":"TestGrant/vault/Revoke","Elapsed":1}
{"Action":"fail","Test":"TestGrant/vault","Elapsed":2.5}
{"Action":"output","Test":"TestGrant/bao","Output":"    grant_test.go:5: bao is not asked for\n"}
{"Action":"skip","Test":"TestGrant/bao","Elapsed":0}
{"Action":"fail","Test":"TestGrant","Elapsed":2.5}
panic: in a loop
{"Action":"fail","Elapsed":3}
`

func TestPrint(t *testing.T) {
	o, err := read(strings.NewReader(said))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	o.print(&out, "vaultpolicy", []string{"vault"})
	const want = `suite vaultpolicy on embedded: passed=1 failed=0 skipped=0 took=0.5s
fail TestGrant/vault/Revoke: grant_test.go:20: still alive
suite vaultpolicy on vault: passed=1 failed=1 skipped=0 took=2.5s
bench name=vault_mint_p50 value=3 unit=ms
| accessor | 3 |
panic: in a loop
`
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", &out, want)
	}
}

// What must be among the suites is found, a package that uses no engine is not, and
// of one that does only the tests that come to an engine.
func TestSuites(t *testing.T) {
	t.Chdir("../..")
	all, err := suites(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{}
	for _, s := range all {
		tests[s.name()] = s.tests
	}
	if tests["server/broker/keyring"] != "^TestAuthority$" || tests["server/store"] != "" {
		t.Errorf("the suites are %v", tests)
	}
	if got := tests["test/engines/vaulttest"]; !strings.Contains(got, "TestSealedServesNothing") {
		t.Errorf("of the fixture itself it runs %q", got)
	}
}

// A test may come to an engine by way of another function, in another file; one that
// only opens what the fixture has besides does not.
func TestTestsOnEngines(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a_test.go": "package p\nimport v \"bivouac/test/engines/vaulttest\"\nfunc each(t *T) { v.Each(t, nil) }\nfunc TestMain(m *M) { each(nil); v.Main(m) }\n",
		"b_test.go": "package p\nfunc TestFar(t *T) { site(t) }\nfunc site(t *T) { each(t) }\nfunc TestOther(t *T) { parse() }\nfunc parse() {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := testsOnEngines(dir, []string{"a_test.go", "b_test.go"})
	if err != nil || !slices.Equal(got, []string{"TestFar"}) {
		t.Errorf("%v, %v", got, err)
	}
}
