package assembly

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac/edge/finding"
)

// The doctor of a broker whose paths are in Consul asks Consul, and says of files that are
// left that they count for nothing; without the block they do.
func TestExamineConsul(t *testing.T) {
	for _, name := range []string{"CONSUL_HTTP_ADDR", "CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "CONSUL_CACERT", "CONSUL_HTTP_SSL"} {
		t.Setenv(name, "")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o := Options{Data: filepath.Join(t.TempDir(), "broker"), Listen: nobody}
	if _, err := Init(o.Data, "", nil); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(o.Data, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("paths/weather.hcl", "Kind = \"service-intentions\"\nName = \"weather\"\nSources = [{ Name = \"agent-a\", Action = \"allow\" }]\n")
	for name, tc := range map[string]struct {
		config string
		check  string
		level  finding.Level
		says   string
	}{
		"files":          {"", "paths", finding.OK, "1 entries"},
		"files are left": {"consul {\n  address = \"" + nobody + "\"\n}\n", "paths", finding.Warning, "count for nothing"},
		"Consul is away": {"consul {\n  address = \"" + nobody + "\"\n}\n", "consul.server", finding.Problem, "does not answer"},
		"a wrong block":  {"consul {\n  address = \"http://consul.example:8500\"\n}\n", "consul", finding.Problem, "plain HTTP to another machine"},
		"both":           {"paths = \"paths\"\nconsul {\n  address = \"" + nobody + "\"\n}\n", "configuration", finding.Problem, "both say who may reach what"},
	} {
		write(ConfigFile, tc.config)
		found := false
		r := Examine(t.Context(), o)
		for _, f := range r.All {
			found = found || f.Check == tc.check && f.Level == tc.level && strings.Contains(f.What, tc.says)
		}
		if !found {
			t.Errorf("%s: %+v", name, r.All)
		}
	}
}
