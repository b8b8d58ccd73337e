package broker_test

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac/consul/consultest"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/keyring"
)

// Whoever looks at broker.hcl sees what a broker that starts would refuse, all of it with
// its line; a file of an authority that is not on this machine is named, and refused by
// the broker alone.
func TestCheckFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "broker.hcl")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	write("good.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	write("bad.pem", "nothing of the kind")
	file := func(ca string) string {
		return `destination "search" {
  url     = "https://search.example"
  ca_file = "` + ca + `"
}
`
	}
	write("broker.hcl", file("good.pem"))
	if c, absent, err := broker.CheckFile(path); err != nil || len(absent) != 0 || len(c.Destinations) != 1 {
		t.Errorf("a good file: %v %v", absent, err)
	}
	write("broker.hcl", file("elsewhere.pem"))
	if _, absent, err := broker.CheckFile(path); err != nil || !slices.Equal(absent, []string{filepath.Join(dir, "elsewhere.pem")}) {
		t.Errorf("a file that is elsewhere: %v %v", absent, err)
	}
	write("broker.hcl", strings.ReplaceAll(file("bad.pem"), `"search"`, `"one"`)+strings.ReplaceAll(file("bad.pem"), `"search"`, `"two"`))
	_, _, err := broker.CheckFile(path)
	for _, want := range []string{path + ":1: destination \"one\": ca_file: ", path + ":5: destination \"two\": ca_file: ", "holds no certificate (PEM)"} {
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("without %q: %v", want, err)
		}
	}
	write("broker.hcl", `destination "Bad" {
  url = "http://search.example"
}
vault {}
`)
	_, _, err = broker.CheckFile(path)
	for _, want := range []string{":1: destination \"Bad\"", ":1: url: "} {
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("without %q: %v", want, err)
		}
	}
}

// A broker starts with authorities that it can read, and says all that it cannot.
func TestUnreadableAuthoritiesAreAllNamed(t *testing.T) {
	cfg := func(ca string) broker.Config {
		var c broker.Config
		for _, name := range []string{"one", "two"} {
			c.Destinations = append(c.Destinations, broker.Destination{Name: name, URL: "https://search.example", CAFile: ca})
		}
		return c
	}
	dir := filepath.Join(t.TempDir(), "broker")
	if _, err := keyring.Init(dir); err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	ports := broker.Ports{Authority: keys, Root: keys, Paths: consultest.NewMemory(), CallLog: filepath.Join(dir, "calls.log")}
	_, err = broker.New(cfg(filepath.Join(dir, "none.pem")), ports)
	for _, name := range []string{`destination "one": ca_file: `, `destination "two": ca_file: `} {
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("without %q: %v", name, err)
		}
	}
	if _, err := broker.New(cfg(""), ports); err != nil {
		t.Errorf("without one: %v", err)
	}
}

// Every tenant that the file names is known with its place, so that a server can say which
// of them it does not have.
func TestNamedTenants(t *testing.T) {
	const file = `
model "main" {
  base_url          = "https://models.example/v1"
  model             = "m"
  credential        = "key"
  credential_tenant = "ten_01arz3ndektsv4rrffq69g5fa1"
  data_boundaries   = ["personal"]
}
destination "search" {
  url = "https://search.example"
  credential "search-db" {
    from "database" {
      role    = "search-ro"
      tenants = ["ten_01arz3ndektsv4rrffq69g5fa2"]
    }
  }
}
vault {
  address = "https://vault.example:8200"
  tenants = ["ten_01arz3ndektsv4rrffq69g5fa3"]
}
caps {
  tenants = ["home"]
  tenant "ten_01arz3ndektsv4rrffq69g5fa4" {
    spend_usd_per_hour = 1
  }
}
`
	c, err := broker.ParseConfig([]byte(file), "broker.hcl")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, n := range c.NamedTenants() {
		got[n.GetTenant()] = n.GetWhere()
	}
	for tenant, where := range map[string]string{
		"ten_01arz3ndektsv4rrffq69g5fa1": "credential_tenant of the model main", "ten_01arz3ndektsv4rrffq69g5fa2": "the credential search-db",
		"ten_01arz3ndektsv4rrffq69g5fa3": "the vault block", "ten_01arz3ndektsv4rrffq69g5fa4": "a tenant block of caps", "home": "the caps block",
	} {
		if !strings.Contains(got[tenant], where) {
			t.Errorf("%s is said to be named in %q, want %s", tenant, got[tenant], where)
		}
		delete(got, tenant)
	}
	if len(got) != 0 {
		t.Errorf("beside them: %v", got)
	}
	if n := (broker.Config{}).NamedTenants(); len(n) != 0 {
		t.Errorf("of an empty file: %v", n)
	}
}
