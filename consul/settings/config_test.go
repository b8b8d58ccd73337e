package settings

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

func decoded(t *testing.T, text, dir string, env map[string]string) (Config, error) {
	t.Helper()
	file, diags := hclsyntax.ParseConfig([]byte(text), "broker.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return Decode(Broker, file.Body, dir, func(name string) string { return env[name] })
}

func put(t *testing.T, mode os.FileMode, path ...string) string {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.WriteFile(name, []byte("x\n"), mode); err != nil {
		t.Fatal(err)
	}
	return name
}

// A block, the environment, and both: the block wins.
func TestDecode(t *testing.T) {
	dir := t.TempDir()
	put(t, 0o644, dir, "ca.pem")
	put(t, 0o600, dir, "token")
	env := map[string]string{"CONSUL_HTTP_ADDR": "consul.example", "CONSUL_HTTP_SSL": "true", "CONSUL_CACERT": "ca.pem", "CONSUL_HTTP_TOKEN_FILE": "token", "CONSUL_HTTP_TOKEN": "not taken: the file is named", "CONSUL_NAMESPACE": "default"}
	for name, tc := range map[string]struct {
		text    string
		env     map[string]string
		address string
		fresh   time.Duration
	}{
		"block":       {"address = \"https://consul.example:8501\"\nca_file = \"ca.pem\"\ntoken_file = \"token\"\nfresh = \"3s\"\n", nil, "https://consul.example:8501", 3 * time.Second},
		"environment": {"", env, "https://consul.example:8501", DefaultFresh},
		"block first": {"address = \"127.0.0.1:8500\"\n", map[string]string{"CONSUL_HTTP_ADDR": "https://elsewhere:1"}, "http://127.0.0.1:8500", DefaultFresh},
		"this agent":  {"address = \"localhost\"\n", nil, "http://localhost:8500", DefaultFresh},
	} {
		c, err := decoded(t, tc.text, dir, tc.env)
		if err != nil || c.Address != tc.address || c.Fresh() != tc.fresh {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		if name != "this agent" && name != "block first" && c.TokenPath() != filepath.Join(dir, "token") {
			t.Errorf("%s: the token's file is %q", name, c.TokenPath())
		}
	}
}

// Every wrong combination is refused, and all that is wrong at once.
func TestDecodeRefuses(t *testing.T) {
	dir := t.TempDir()
	put(t, 0o644, dir, "open")
	put(t, 0o600, dir, "key")
	good := "address = \"https://consul.example\"\n"
	if _, err := decoded(t, good, dir, nil); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		text string
		env  map[string]string
		want string
	}{
		"no address":       {"", nil, "address is missing"},
		"plain elsewhere":  {"address = \"http://consul.example:8500\"\n", nil, "plain HTTP to another machine"},
		"plain by default": {"address = \"consul.example:8500\"\n", nil, "plain HTTP to another machine"},
		"plain with SSL":   {"address = \"http://127.0.0.1:8500\"\n", map[string]string{"CONSUL_HTTP_SSL": "1"}, "asks for TLS"},
		"unix":             {"address = \"unix:///run/consul.sock\"\n", nil, "no address"},
		"a path":           {"address = \"https://consul.example/v1\"\n", nil, "more than a host"},
		"a user":           {"address = \"https://a:b@consul.example\"\n", nil, "more than a host"},
		"open token":       {good + "token_file = \"open\"\n", nil, "token_file:"},
		"no ca":            {good + "ca_file = \"none.pem\"\n", nil, "ca_file:"},
		"half a pair":      {good + "key_file = \"key\"\n", nil, "belong together"},
		"token in env":     {good, map[string]string{"CONSUL_HTTP_TOKEN": "00000000-0000-4000-8000-00000000cafe"}, "takes none from its environment"},
		"no look":          {good, map[string]string{"CONSUL_HTTP_SSL_VERIFY": "false"}, "CONSUL_HTTP_SSL_VERIFY"},
		"no truth":         {good, map[string]string{"CONSUL_HTTP_SSL": "maybe"}, `"maybe"`},
		"basic auth":       {good, map[string]string{"CONSUL_HTTP_AUTH": "u:p"}, "CONSUL_HTTP_AUTH"},
		"ca folder":        {good, map[string]string{"CONSUL_CAPATH": "/etc/ssl"}, "CONSUL_CAPATH"},
		"namespace":        {good, map[string]string{"CONSUL_NAMESPACE": "team"}, "CONSUL_NAMESPACE"},
		"partition":        {good, map[string]string{"CONSUL_PARTITION": "p"}, "CONSUL_PARTITION"},
		"fresh":            {good + "fresh = \"1s\"\n", nil, "fresh"},
		"fresh, no time":   {good + "fresh = \"soon\"\n", nil, "fresh"},
		"a token here":     {good + "token = \"x\"\n", nil, "token"},
	} {
		_, err := decoded(t, tc.text, dir, tc.env)
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), "cafe") {
			t.Errorf("%s: the token is in the error", name)
		}
	}
	_, err := decoded(t, "ca_file = \"none.pem\"\nfresh = \"1s\"\n", dir, map[string]string{"CONSUL_HTTP_SSL_VERIFY": "0"})
	for _, want := range []string{"address", "ca_file", "fresh", "CONSUL_HTTP_SSL_VERIFY"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("all at once: %v lacks %s", err, want)
		}
	}
}
