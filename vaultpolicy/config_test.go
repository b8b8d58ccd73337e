package vaultpolicy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac/edge/protocol"
)

func block(t *testing.T, dir, text string, env map[string]string) (Config, error) {
	t.Helper()
	f, diags := hclsyntax.ParseConfig([]byte(text), "broker.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return Decode(f.Body, dir, func(k string) string { return env[k] })
}

func TestDecode(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"secret-id": "s-0123456789", "role-id": "the-role\n", "ca.pem": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	least := `auth "approle" {
		role_id_file   = "role-id"
		secret_id_file = "secret-id"
	}`
	c, err := block(t, dir, least, map[string]string{"VAULT_ADDR": "https://vault.example:8200", "BAO_ADDR": "https://bao.example:8200", "VAULT_NAMESPACE": "a/b"})
	if err != nil {
		t.Fatal(err)
	}
	auth, err := c.auth()
	if err != nil || auth.RoleID != "the-role" || auth.File != filepath.Join(dir, "secret-id") || auth.Mount != "approle" || auth.Role != "bivouac-broker" {
		t.Errorf("%+v %v", auth, err)
	}
	n := c.names()
	if c.Address != "https://bao.example:8200" || c.Namespace != "a/b" || n.Grants != "bivouac-grants" || duration(c.PollText) != 2*time.Second || duration(c.GraceText) != 15*time.Second || c.TokensPerSecond != 0 {
		t.Errorf("%+v %+v", c, n)
	}
	whole := `
		address   = "https://vault.example:8200"
		ca_file   = "ca.pem"
		namespace = "team"
		prefix    = "second"
		tenants   = ["ten_01m8n7mng1x16gsh7mgchdm30b"]
		poll      = "1s"
		grace     = "10s"
		period    = "24h"
		tokens_per_second = -1
		mounts { transit = "keys/bivouac" }
		audit { file = "audit.log" }
	` + strings.Replace(least, `secret_id_file`, "mount = \"machines\"\nrole = \"b\"\nsecret_id_file", 1)
	c, err = block(t, dir, whole, map[string]string{"VAULT_ADDR": "https://other.example", "BAO_NAMESPACE": "other"})
	if err != nil {
		t.Fatal(err)
	}
	if n := c.names(); c.Address != "https://vault.example:8200" || c.Namespace != "team" || n.Grants != "second-grants" || n.Transit != "keys/bivouac" || c.Auth.Mount != "machines" {
		t.Errorf("%+v %+v", c, n)
	}
}

// Whatever is wrong is said at once, each with its field.
func TestDecodeRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "open"), []byte("s-0123456789"), 0o644); err != nil {
		t.Fatal(err)
	}
	for text, wants := range map[string][]string{
		``: {"address is missing", "auth is missing"},
		`address = "http://vault.example"
		ca_file  = "none.pem"
		prefix   = "No"
		tenants  = ["x"]
		poll     = "1ms"
		grace    = "forever"
		period   = "1s"
		tokens_per_second = -2
		mounts {
			grants  = "../x"
			transit = "../x"
		}
		audit {}
		auth "approle" {
			role_id      = "a"
			role_id_file = "b"
			file         = "c"
		}`: {
			"in clear", "ca_file", "prefix", "tenants", "poll", "grace", "period", "tokens_per_second", "mounts: grants", "must be three",
			"audit: either", "secret_id_file is missing", "file has no meaning", "either role_id or role_id_file",
		},
		`address = "https://vault.example"
		auth "approle" {
			role_id        = "a"
			secret_id_file = "open"
		}
		grace = "3s"`: {"secret_id_file", "chmod 600", "twice poll"},
		`address = "https://vault.example"
		auth "jwt" { file = "x" }`: {"bound_audiences or bound_subject"},
		`address = "https://vault.example"
		auth "cert" {}`: {"cert_file is missing", "key_file is missing", "issuer_file is missing", "common_name is missing"},
		`address = "https://vault.example"
		auth "userpass" {}`: {"is not known"},
		`address = "https://vault.example"
		auth "token" { file = "x" }
		audit {
			file   = "/none/x"
			socket = "y"
		}`: {"audit: either", "the folder of file"},
		`token = "hvs.x"`: {"Unsupported argument"},
	} {
		_, err := block(t, dir, text, nil)
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%s\n%v", text, err)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s\nsays nothing of %q:\n%v", text, want, err)
			}
		}
	}
}
