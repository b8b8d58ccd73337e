package broker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/consul/consultest"
	"bivouac/edge/finding"
	"bivouac/server/broker"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/keyring"
)

// A running broker says what its file has that it has not, until it is restarted: a new
// route, another address, one that is gone, a file with a mistake. Caps, and where a
// block stands, are no difference.
func TestFileThatChangedSinceTheStartIsFound(t *testing.T) {
	const vault = "vault {\n  address = \"https://vault.example:8200\"\n  poll = \"2s\"\n}\n"
	dir := filepath.Join(t.TempDir(), "broker")
	if _, err := keyring.Init(dir); err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	file := filepath.Join(dir, "broker.hcl")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	near := strings.NewReplacer("https://api.example/v1", "http://127.0.0.1:1/v1", "https://weather.example", "http://127.0.0.1:1",
		"  data_boundaries", "  allow_private = true\n  data_boundaries", "  methods", "  allow_private = true\n  methods").Replace(goodConfig)
	started := func(text, log string) *broker.Broker {
		t.Helper()
		write(text)
		cfg, err := broker.LoadConfig(file)
		if err != nil {
			t.Fatal(err)
		}
		b, err := broker.New(cfg, broker.Ports{Authority: keys, Root: keys, Paths: consultest.NewMemory(), CallLog: filepath.Join(dir, log), ConfigFile: file})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	plain, onVault := started(near, "calls.log"), started(near+vault, "others.log")
	another := strings.Replace(near[strings.Index(near, "model"):strings.Index(near, "destination")], `"main"`, `"gpt"`, 1)
	for name, c := range map[string]struct {
		text  string
		level finding.Level
		want  string
		of    *broker.Broker
	}{
		"as it was":       {near, finding.OK, "as it was", plain},
		"other caps":      {"# moved down\n\n" + strings.Replace(near, "= 2.5", "= 3.5", 1), finding.OK, "as it was", plain},
		"a new route":     {near + another, finding.Warning, `model "gpt" is new`, plain},
		"another address": {strings.Replace(near, "127.0.0.1:1/v1", "127.0.0.1:2/v1", 1), finding.Warning, `model "main" is another one`, plain},
		"one that is gone": {strings.Replace(near[:strings.Index(near, "destination")]+near[strings.Index(near, "caps"):], "    destinations = [\"weather\"]\n", "", 1),
			finding.Warning, `destination "weather" is gone`, plain},
		"a vault block":   {near + vault, finding.Warning, "the vault block is new", plain},
		"the same vault":  {near + "# moved\n" + vault, finding.OK, "as it was", onVault},
		"another setting": {near + strings.Replace(vault, "2s", "5s", 1), finding.Warning, "the vault block is another one", onVault},
		"no vault block":  {near, finding.Warning, "the vault block is gone", onVault},
		"a mistake":       {near + "model {", finding.Warning, "not in its file any more", plain},
	} {
		write(c.text)
		found := false
		for _, f := range c.of.Examine(t.Context()).All {
			if f.Check != "configuration" {
				continue
			}
			found = true
			if f.Level != c.level || !strings.Contains(f.What, c.want) || c.level == finding.Warning && name != "a mistake" && !strings.Contains(f.Mend, "restart bivouac-broker") {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if !found {
			t.Errorf("%s: nothing is said of the file", name)
		}
	}
}

// Where a vault block is new and the keyring holds something, a move comes before the
// restart, which would leave it behind; with nothing in the keyring a restart is all.
func TestMoveComesBeforeARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "broker")
	if _, err := keyring.Init(dir); err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	file := filepath.Join(dir, "broker.hcl")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := broker.LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := broker.New(cfg, broker.Ports{Authority: keys, Root: keys, Paths: consultest.NewMemory(), CallLog: filepath.Join(dir, "calls.log"), ConfigFile: file})
	if err != nil {
		t.Fatal(err)
	}
	mend := func(text string) string {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, f := range b.Examine(t.Context()).All {
			if f.Check == "configuration" && f.Level == finding.Warning {
				return f.Mend
			}
		}
		return ""
	}
	const vault = "vault {\n  address = \"https://vault.example:8200\"\n}\n"
	if got := mend(vault); !strings.HasPrefix(got, "restart") {
		t.Errorf("with an empty keyring: %q", got)
	}
	err = keys.PutCredential(t.Context(), "ten_01arz3ndektsv4rrffq69g5fav", "weather-token", authoritytest.Seal(t, keys, "weather-token", authoritytest.Value))
	if err != nil {
		t.Fatal(err)
	}
	if got := mend(vault); !strings.Contains(got, "stop the broker, bivouac-broker vault-move --apply") || !strings.Contains(got, "1 credential(s)") {
		t.Errorf("with a credential in the keyring: %q", got)
	}
	if got := mend("pool = \"default\"\ndestination \"search\" {\n  url = \"http://127.0.0.1:1\"\n  allow_private = true\n}\n"); !strings.HasPrefix(got, "restart") {
		t.Errorf("without a vault block: %q", got)
	}
}
