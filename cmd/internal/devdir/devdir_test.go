package devdir

import (
	"os"
	"path/filepath"
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
	if err := os.MkdirAll(dev, 0o700); err != nil {
		t.Fatal(err)
	}
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
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := Part(data, "broker", false); got != data || Addresses(got) != nil {
		t.Errorf("with both: %s, %v", got, Addresses(got))
	}
}
