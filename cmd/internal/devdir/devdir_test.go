package devdir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The part of bivouac dev is found where nothing else is, and nowhere else.
func TestPart(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_STATE_HOME", home)
	data, dev := filepath.Join(home, "bivouac", "broker"), filepath.Join(home, "bivouac", "dev", "broker")
	if got := Part(data, "broker", false); got != data {
		t.Errorf("with neither: %s", got)
	}
	fill := func(dir string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "something"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	fill(dev)
	if got := Part(data, "broker", false); got != dev {
		t.Errorf("with bivouac dev's alone: %s", got)
	}
	if got := Part(data, "broker", true); got != data {
		t.Errorf("named: %s", got)
	}
	if Addresses(dev) != nil {
		t.Error("addresses out of nothing")
	}
	if err := os.WriteFile(filepath.Join(Default(), AddressFile), []byte(`{"broker":"203.0.113.10:7402"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := Addresses(dev + "/")["broker"]; got != "203.0.113.10:7402" {
		t.Errorf("the broker's address: %q", got)
	}
	if got := Command(Default()); got != "bivouac dev --broker 203.0.113.10:7402" {
		t.Errorf("what starts it again: %s", got)
	}
	if got := Command(filepath.Join(home, "a b")); got != "bivouac dev --data '"+filepath.Join(home, "a b")+"'" {
		t.Errorf("what starts another: %s", got)
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := Part(data, "broker", false); got != dev {
		t.Errorf("an empty directory is no broker: %s", got)
	}
	fill(data)
	if got := Part(data, "broker", false); got != data || Addresses(got) != nil {
		t.Errorf("with both: %s, %v", got, Addresses(got))
	}
}

// What is on the machine is told from what either deployment left of itself.
func TestDeployments(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_STATE_HOME", home)
	want := func(name string, own, dev bool) {
		t.Helper()
		if o, d := Deployments(); o != own || d != dev {
			t.Errorf("%s: own %t, dev %t", name, o, d)
		}
	}
	fill := func(dir string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "something"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	want("nothing", false, false)
	if err := os.MkdirAll(Own("server"), 0o700); err != nil {
		t.Fatal(err)
	}
	want("an empty directory", false, false)
	fill(filepath.Join(Default(), "broker"))
	want("dev without its server", false, true)
	if got := Beside(filepath.Join(Default(), "server"), "broker"); got != filepath.Join(Default(), "broker") {
		t.Errorf("beside dev's server: %q", got)
	}
	if got := Beside(Own("server"), "broker"); got != "" {
		t.Errorf("beside a server alone: %q", got)
	}
	fill(Own("broker"))
	want("both", true, true)
}

// A directory with a server's and a broker's in it, or with the addresses of bivouac
// dev, is no server's; one that is empty, missing or a server's is.
func TestServerPart(t *testing.T) {
	home := t.TempDir()
	both, dev, server := filepath.Join(home, "both"), filepath.Join(home, "dev"), filepath.Join(home, "server")
	for _, f := range []string{"both/server/bivouac.db", "both/broker/keyring.age", "dev/addresses.json", "server/bivouac.db"} {
		path := filepath.Join(home, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for data, good := range map[string]bool{both: false, dev: false, filepath.Join(both, "server"): true, server: true, filepath.Join(home, "none"): true} {
		if err := ServerPart(data); good != (err == nil) || !good && !strings.Contains(err.Error(), "--data "+filepath.Join(data, "server")) {
			t.Errorf("%s: %v", data, err)
		}
	}
}
