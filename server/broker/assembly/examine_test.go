package assembly

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/finding"
)

// Each broken part of a directory is found with what mends it; a fresh directory
// has no problem.
func TestExamine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	provider, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer provider.Close()
	config := func(url string) string {
		return `model "local" {
  base_url        = "` + url + `"
  allow_private   = true
  model           = "m"
  data_boundaries = ["personal"]
  price {
    input_usd_per_mtok  = 0
    output_usd_per_mtok = 0
  }
}
`
	}
	write := func(t *testing.T, o Options, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(o.Data, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		injure func(t *testing.T, o Options)
		check  string
		what   string
		mend   string
	}{
		"sound":       {nil, "", "", ""},
		"no keyring":  {func(t *testing.T, o Options) { os.Remove(filepath.Join(o.Data, "keyring.age")) }, "keyring", "is not there", "bivouac-broker init"},
		"open key":    {func(t *testing.T, o Options) { os.Chmod(filepath.Join(o.Data, "keyring.key"), 0o644) }, "keyring", "open to other users", "chmod 600"},
		"mistyped":    {func(t *testing.T, o Options) { write(t, o, ConfigFile, "model {") }, "configuration", ConfigFile + ":1", "edit"},
		"no provider": {func(t *testing.T, o Options) { write(t, o, ConfigFile, config("http://"+address+"/v1")) }, "provider.local", "refused", "curl"},
		"open file":   {func(t *testing.T, o Options) { os.Chmod(filepath.Join(o.Data, ConfigFile), 0o666) }, "configuration", "others can change it", "chmod go-w"},
		"open paths":  {func(t *testing.T, o Options) { os.Chmod(filepath.Join(o.Data, pathsDir), 0o777) }, "paths", "others can change it", "chmod go-w"},
		"no vault": {func(t *testing.T, o Options) {
			write(t, o, ConfigFile, config("http://"+provider.Addr().String()+"/v1")+"vault {\n  address = \"http://"+address+"\"\n  auth \"token\" {\n    file = \"token\"\n  }\n}\n")
		}, "vault.server", "refused", "VAULT_ADDR"},
		"vault block": {func(t *testing.T, o Options) {
			write(t, o, ConfigFile, config("http://"+provider.Addr().String()+"/v1")+"vault {\n  address = \"http://"+address+"\"\n}\n")
		}, "vault", "auth is missing", "edit the vault block"},
		"broken path": {func(t *testing.T, o Options) { write(t, o, "paths/x.hcl", "Name = ") }, "paths", "x.hcl:1", "edit the files"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Data: filepath.Join(t.TempDir(), "broker"), Listen: address}
			if _, err := Init(o.Data, "", nil); err != nil {
				t.Fatal(err)
			}
			write(t, o, ConfigFile, config("http://"+provider.Addr().String()+"/v1"))
			if c.injure != nil {
				c.injure(t, o)
			}
			r := Examine(t.Context(), o)
			if c.injure == nil {
				if r.Worst() == finding.Problem || len(r.All) < 7 {
					t.Errorf("%+v", r.All)
				}
				return
			}
			for _, f := range r.All {
				if f.Check == c.check && f.Level == finding.Problem && strings.Contains(f.What, c.what) && strings.Contains(f.Mend, c.mend) {
					return
				}
			}
			t.Errorf("no problem %s of %q with mend %q: %+v", c.check, c.what, c.mend, r.All)
		})
	}
}
