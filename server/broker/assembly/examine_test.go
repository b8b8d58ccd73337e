package assembly

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/finding"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/keyring"
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
		"several": {func(t *testing.T, o Options) {
			write(t, o, ConfigFile, "pool = \"A B\"\nvault {\n  address = \"http://"+address+"\"\n}\n")
		}, "vault", "auth is missing", "edit"},
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

// A file is read by every rule of a broker that starts, and all that is refused is said
// once; a good one is taken, and what is on another machine is no mistake.
func TestValidate(t *testing.T) {
	path := filepath.Join(t.TempDir(), ConfigFile)
	const destination = "destination \"search\" {\n  url = \"https://search.example\"\n  ca_file = \"elsewhere.pem\"\n}\n"
	const vault = "vault {\n  address = \"https://vault.example:8200\"\n  auth \"token\" {\n    file = \"token\"\n  }\n}\n"
	for name, c := range map[string]struct {
		text     string
		level    finding.Level
		problems map[string]string // by check
	}{
		"good":            {"", finding.OK, nil},
		"with vault":      {vault, finding.OK, nil},
		"elsewhere":       {destination, finding.Warning, nil},
		"torn":            {"vault {", finding.Problem, map[string]string{"configuration": ":1: "}},
		"every block bad": {"pool = \"A B\"\nvault {}\nconsul {\n  address = \"ftp://x\"\n}\n", finding.Problem, map[string]string{"configuration": "pool", "vault": "auth is missing", "consul": "ftp"}},
		"vault alone":     {"vault {}", finding.Problem, map[string]string{"vault": "auth is missing"}},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := Validate(path)
		said := map[string]string{}
		for _, f := range r.All {
			if f.Level == finding.Problem {
				if said[f.Check] != "" {
					t.Errorf("%s: %s is said twice: %+v", name, f.Check, r.All)
				}
				said[f.Check] = f.What
			}
		}
		for check, want := range c.problems {
			if !strings.Contains(said[check], want) {
				t.Errorf("%s: %s says %q, want %q", name, check, said[check], want)
			}
		}
		if r.Worst() != c.level || len(said) != len(c.problems) {
			t.Errorf("%s: %s: %+v", name, r.Worst(), r.All)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if r := Validate(path); r.Worst() != finding.Problem || len(r.All) != 1 {
		t.Errorf("no file: %+v", r.All)
	}
}

// What a vault block leaves unused in the keyring is said while no broker runs, with what
// moves it; without the block it is where it belongs.
func TestLeftInTheKeyringIsSaidWhileNoBrokerRuns(t *testing.T) {
	o := Options{Data: filepath.Join(t.TempDir(), "broker"), Listen: "127.0.0.1:0"}
	if _, err := Init(o.Data, "", nil); err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.Open(o.Data)
	if err != nil {
		t.Fatal(err)
	}
	err = keys.PutCredential(t.Context(), "ten_01arz3ndektsv4rrffq69g5fav", "weather-token", authoritytest.Seal(t, keys, "weather-token", authoritytest.Value))
	if err := errors.Join(err, keys.Close()); err != nil {
		t.Fatal(err)
	}
	left := func(config string) (found []finding.Finding) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(o.Data, ConfigFile), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, f := range Examine(t.Context(), o).All {
			if f.Check == "vault.keyring" {
				found = append(found, f)
			}
		}
		return found
	}
	if found := left(""); len(found) != 0 {
		t.Errorf("without a vault block: %+v", found)
	}
	found := left("vault {\n  address = \"http://127.0.0.1:1\"\n  auth \"token\" {\n    file = \"token\"\n  }\n}\n")
	if len(found) != 1 || found[0].Level != finding.Warning || !strings.Contains(found[0].What, "0 grant(s) in force and 1 credential(s)") || !strings.HasPrefix(found[0].Mend, "bivouac-broker vault-move --apply") {
		t.Errorf("with one: %+v", found)
	}
}
