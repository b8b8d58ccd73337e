//go:build linux

package main

import (
	"strings"
	"testing"
)

// said is what go test -json says of a package: one test that needs no engine, and
// one that ran on Vault, was passed over on OpenBao, and failed in one part.
const said = `{"Action":"output","Test":"TestParse","Output":"=== RUN TestParse\n"}
{"Action":"pass","Test":"TestParse","Elapsed":0.5}
{"Action":"output","Test":"TestGrant/vault/Create","Output":"    grant_test.go:9: bench name=vault_mint_p50 value=3 unit=ms\n"}
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
panic: in a loop
`
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", &out, want)
	}
}

// The two packages that must be among the suites are found, and one that uses no
// engine is not.
func TestSuites(t *testing.T) {
	t.Chdir("../..")
	all, err := suites(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range all {
		names[s.name()] = true
	}
	if !names["server/broker/keyring"] || !names["test/engines/vaulttest"] || names["server/store"] {
		t.Errorf("the suites are %v", names)
	}
}
