package intentions

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What paths govern in a broker.hcl, for whoever sets Consul up.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "broker.hcl")
	write := func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const rest = "model \"main\" {\n  base_url = \"https://x\"\n}\ndestination \"weather\" {\n}\n"
	write(rest + "consul {\n  address = \"https://consul.example\"\n  ca_file = \"elsewhere.pem\"\n}\n")
	f, err := ReadFile(name, func(string) string { return "" })
	if err != nil || strings.Join(f.Destinations, " ") != "model-main weather" {
		t.Errorf("%+v, %v", f, err)
	}
	write(rest)
	if _, err := ReadFile(name, os.Getenv); err == nil || !strings.Contains(err.Error(), ErrNoConsul.Error()) {
		t.Errorf("without a block: %v", err)
	}
}
