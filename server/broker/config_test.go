package broker_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker"
)

const goodConfig = `listen = "127.0.0.1:7402"
model "main" {
  base_url        = "https://api.example/v1"
  model           = "gpt-x"
  credential      = "openai"
  data_boundaries = ["personal"]
  price {
    input_usd_per_mtok  = 0.15
    output_usd_per_mtok = 0.6
  }
}
destination "weather" {
  url     = "https://weather.example"
  methods = ["GET"]
  credential "weather-key" {
    header = "X-Api-Key"
    format = "{value}"
  }
}
caps {
  tenants            = ["local"]
  spend_usd_per_hour = 2.5
  tenant "local" {
    models       = ["main"]
    destinations = ["weather"]
  }
}
`

func TestParseConfig(t *testing.T) {
	c, err := broker.ParseConfig([]byte(goodConfig), "/etc/bivouac/broker.hcl")
	if err != nil {
		t.Fatal(err)
	}
	if c.Pool != "default" || c.Servers[0] != "127.0.0.1:7401" || c.Path(c.Paths) != "/etc/bivouac/paths" || c.Models[0].MaxOutputTokens != 4096 || *c.Caps.SpendUSDPerHour != 2.5 {
		t.Errorf("%+v", c)
	}
	bare, err := broker.ParseConfig(nil, "b.hcl")
	if err != nil || *bare.Caps.SpendUSDPerHour != broker.DefaultSpendUSD {
		t.Errorf("an empty file: %+v %v", bare.Caps, err)
	}
}

// The header of a key follows the format, and what the route says goes before it.
func TestCredentialHeaders(t *testing.T) {
	for _, tc := range []struct{ lines, header, format string }{
		{"", "Authorization", "Bearer {value}"},
		{`format = "openai-responses"`, "Authorization", "Bearer {value}"},
		{`format = "anthropic"`, "x-api-key", "{value}"},
		{"format = \"anthropic\"\ncredential_header = \"Authorization\"", "Authorization", "Bearer {value}"},
		{`credential_header = "api-key"`, "api-key", "{value}"},
		{"credential_header = \"X-Key\"\ncredential_format = \"Key {value}\"", "X-Key", "Key {value}"},
		{`credential_format = "Token {value}"`, "Authorization", "Token {value}"},
	} {
		c, err := broker.ParseConfig([]byte(strings.Replace(goodConfig, "model           = ", tc.lines+"\nmodel = ", 1)), "b.hcl")
		if err != nil || c.Models[0].CredentialHeader != tc.header || c.Models[0].CredentialFormat != tc.format {
			t.Errorf("%q: %+v, %v", tc.lines, c.Models, err)
		}
	}
}

// The example that init writes is good, and so is all of it without its comments.
func TestExampleConfig(t *testing.T) {
	whole := regexp.MustCompile(`(?m)^# ?(model|destination|oauth2|consul|  |})`).ReplaceAllString(broker.Example, "$1")
	whole = strings.Replace(whole, "\npaths ", "\n# paths ", 1) // Consul is in its place
	for _, src := range []string{broker.Example, whole} {
		c, err := broker.ParseConfig([]byte(src), "broker.hcl")
		if err != nil {
			t.Fatalf("%v\n%s", err, src)
		}
		if src == whole && (len(c.Models) != 3 || len(c.Destinations) != 5 || len(c.OAuth2) != 1) {
			t.Errorf("%d models, %d destinations, %d of OAuth", len(c.Models), len(c.Destinations), len(c.OAuth2))
		}
	}
}

// An MCP server is bounded where its block says nothing, and a good one is accepted.
func TestMCPConfig(t *testing.T) {
	for lines, want := range map[string]broker.MCP{
		"mcp {}": {Timeout: "1m0s", MaxAnswerKiB: 4096, MaxTools: 256, MaxSchemaKiB: 64, MaxSchemaDepth: 32},
		"mcp {\n timeout = \"5s\"\n max_answer_kib = 1\n max_tools = 2\n max_schema_kib = 3\n max_schema_depth = 4\n }": {Timeout: "5s", MaxAnswerKiB: 1, MaxTools: 2, MaxSchemaKiB: 3, MaxSchemaDepth: 4},
	} {
		c, err := broker.ParseConfig([]byte(strings.Replace(goodConfig, "  methods = [\"GET\"]", lines, 1)), "b.hcl")
		if err != nil || !reflect.DeepEqual(*c.Destinations[0].MCP, want) {
			t.Errorf("%q: %+v %v", lines, c.Destinations, err)
		}
	}
}

// Every problem is named with its line, all of them at once.
func TestConfigProblems(t *testing.T) {
	replace := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(goodConfig) }
	for name, tc := range map[string]struct {
		src  string
		want []string
	}{
		"syntax":      {replace(`"gpt-x"`, `"gpt-x`), []string{"b.hcl:4"}},
		"unknown":     {replace("credential  ", "credentials "), []string{"b.hcl:5", "Unsupported argument"}},
		"all at once": {replace("https://api", "http://api", "personal", "", `["GET"]`, `["FETCH"]`, "X-Api-Key", "Host"), []string{"b.hcl:2: base_url", "clear text", "b.hcl:12: methods", "b.hcl:15: credential"}},
		"user in url": {replace("https://weather", "https://me:pw@weather"), []string{"b.hcl:12: url"}},
		"two models":  {goodConfig + strings.Split(goodConfig[strings.Index(goodConfig, "model"):], "destination")[0], []string{`model "main" stands twice`}},
		"names":       {replace(`model "main"`, `model "Main"`), []string{"b.hcl:2: model \"Main\"", "there is no model \"main\""}},
		"shadow":      {replace(`destination "weather"`, `destination "model-main"`, `["weather"]`, `["model-main"]`), []string{"the name that paths give to a model route"}},
		"caps":        {replace(`["weather"]`, `["wether"]`, "2.5", "-1"), []string{"there is no destination \"wether\"", "spend_usd_per_hour -1"}},
		"listen":      {replace("127.0.0.1:7402", "7402"), []string{`listen: "7402"`}},
		"format":      {replace("{value}", "token"), []string{"{value} exactly once"}},
		"egress":      {replace("  methods = [\"GET\"]", "  egress {\n    protocol = \"pypi\"\n    credential = \"other\"\n    max_open = 1000\n  }"), []string{"b.hcl:12: egress: protocol \"pypi\" is not known: use one of git, go, npm", "data_boundaries is empty", "credential \"other\" has no block", "max_open 1 to 256"}},
		"mcp": {replace("  methods = [\"GET\"]", "  methods = [\"GET\"]\n  mcp {\n    credential = \"other\"\n    timeout = \"1h\"\n    max_answer_kib = -1\n    max_tools = 100000\n    max_schema_depth = 99\n  }", "X-Api-Key", "Mcp-Name"),
			[]string{"b.hcl:12: mcp: an MCP server takes tools of kind \"mcp\" alone", "credential \"other\" has no block", "timeout \"1h\"", "max_answer_kib -1", "max_tools 100000", "max_schema_depth 99", "the header \"Mcp-Name\" belongs to MCP itself"}},
		"wire":        {replace("model           = ", "format = \"openai\"\n  model = "), []string{"b.hcl:2: format \"openai\"", "openai-chat, openai-responses, anthropic"}},
		"key header":  {replace("model           = ", "credential_header = \"Host\"\n  model = "), []string{"b.hcl:2: credential_header"}},
		"timeouts":    {replace("model           = ", "idle_timeout = \"fast\"\n  first_timeout = \"2h\"\n  model = "), []string{"idle_timeout \"fast\"", "first_timeout \"2h\""}},
		"cache price": {replace("output_usd_per_mtok = 0.6", "output_usd_per_mtok = 0.6\n    cache_read_usd_per_mtok = -1"), []string{"b.hcl:2: price"}},
		"boundaries":  {replace(`["personal"]`, `[]`), []string{"data_boundaries is empty"}},
		"two paths":   {goodConfig + "paths = \"paths\"\nconsul {\n}\n", []string{`paths = "paths" and a consul block both say`}},
		"price":       {replace("0.15", "-0.15"), []string{"b.hcl:2: price"}},
		"no url":      {replace("base_url        = \"https://api.example/v1\"\n", ""), []string{"b.hcl:2", "base_url"}},
	} {
		_, err := broker.ParseConfig([]byte(tc.src), "b.hcl")
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: no %q in\n%v", name, want, err)
			}
		}
		if strings.Contains(err.Error(), "me:pw") {
			t.Errorf("%s: the error holds a password", name)
		}
	}
}

func TestLoadConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "broker.hcl")
	if _, err := broker.LoadConfig(path); protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), "bivouac-broker init") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(path, []byte(goodConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := broker.LoadConfig(path); err != nil || c.Dir != filepath.Dir(path) {
		t.Errorf("%v %v", c.Dir, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := broker.LoadConfig(path); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "chmod go-w "+path) {
		t.Errorf("a file that others can change: %v", err)
	}
}
