package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac/edge/filemode"
	"bivouac/edge/protocol"
)

// LoadConfig reads broker.hcl. Every problem is named with file and line.
func LoadConfig(path string) (Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return Config{}, unread(path, err)
	}
	if err := filemode.Policy(path); err != nil {
		return Config{}, err
	}
	return ParseConfig(src, path)
}

// unread says what mends a configuration that is not there, or not this user's.
func unread(path string, err error) error {
	switch dir := filepath.Dir(path); {
	case errors.Is(err, fs.ErrNotExist):
		return protocol.Errorf(protocol.CodeInvalidArgument, "the broker's configuration %s is not there: name the broker's directory with --data; where there is none any more, bivouac-broker init --data %s writes a first one, and leaves a keyring as it is", path, dir)
	case errors.Is(err, fs.ErrPermission):
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the broker's configuration cannot be read: %w; run this as the user of the broker (ls -ld %s says who that is)", err, dir)
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "the broker's configuration cannot be read: %w", err)
}

// First is the broker.hcl that init writes, with addresses that are given in place of
// those for one machine alone.
func First(listen string, servers []string) (string, error) {
	text := Example
	replace := func(field, of, value string) {
		text = strings.Replace(text, field+" = "+of, field+" = "+value, 1)
	}
	if listen != "" {
		replace("listen ", `"127.0.0.1:7402"`, strconv.Quote(listen))
	}
	if len(servers) > 0 {
		var all []string
		for _, s := range servers {
			all = append(all, strconv.Quote(s))
		}
		replace("servers", `["127.0.0.1:7401"]`, "["+strings.Join(all, ", ")+"]")
	}
	_, err := ParseConfig([]byte(text), "broker.hcl")
	return text, err
}

// ParseConfig reads and validates the text of broker.hcl.
func ParseConfig(src []byte, filename string) (Config, error) {
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	var c Config
	if !diags.HasErrors() {
		diags = append(diags, gohcl.DecodeBody(file.Body, nil, &c)...)
	}
	var problems []error
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			problems = append(problems, fmt.Errorf("%s: %s: %s", place(d.Subject, filename), d.Summary, d.Detail))
		}
	}
	c.Dir, c.capsGiven = filepath.Dir(filename), c.Caps != nil
	c = c.withDefaults()
	if len(problems) == 0 {
		problems = c.problems(filename)
	}
	if len(problems) > 0 {
		return Config{}, protocol.Errorf(protocol.CodeInvalidArgument, "the broker's configuration is refused:\n%w", errors.Join(problems...))
	}
	return c, nil
}

func place(r *hcl.Range, filename string) string {
	if r == nil || r.Filename == "" {
		return filename
	}
	return fmt.Sprintf("%s:%d", r.Filename, r.Start.Line)
}

// Example is the broker.hcl that init writes.
const Example = `# What this broker may reach and spend. No server can widen it.
# Restart bivouac-broker after a change. The caps below are read again when this
# file changes, and the files in paths are watched.

listen  = "127.0.0.1:7402"
servers = ["127.0.0.1:7401"]  # runner listeners whose feed is followed
paths   = "paths"             # who may reach what: service-intentions files

# consul {                            # the same as intentions in Consul, instead of paths
#   address    = "https://127.0.0.1:8501"
#   ca_file    = "consul-ca.pem"
#   token_file = "consul.token"       # bivouac consul setup says how it is made
# }

# model "default" {
#   base_url        = "https://api.openai.com/v1"
#   model           = "gpt-4.1"
#   credential      = "openai"        # bivouac credential set openai
#   data_boundaries = ["personal"]
#   price {
#     input_usd_per_mtok  = 2
#     output_usd_per_mtok = 8
#   }
# }
#
# model "claude" {
#   format          = "anthropic"     # or "openai-responses"; "openai-chat" when absent
#   base_url        = "https://api.anthropic.com/v1"
#   model           = "claude-sonnet-4-5"
#   credential      = "anthropic"     # sent as x-api-key; see credential_header
#   data_boundaries = ["personal"]
#   price {
#     input_usd_per_mtok  = 3
#     output_usd_per_mtok = 15
#   }
# }
#
# model "local" {                     # an OpenAI-compatible server of your own
#   base_url        = "http://127.0.0.1:11434/v1"
#   allow_private   = true
#   model           = "qwen3"
#   data_boundaries = ["personal", "internal"]
#   price {
#     input_usd_per_mtok  = 0
#     output_usd_per_mtok = 0
#   }
# }
#
# destination "go-proxy" {            # packages for sandboxed code: egress = ["go-proxy"] in an agent
#   url             = "https://proxy.golang.org"
#   data_boundaries = ["personal", "internal"]
#   egress {
#     protocol = "go"                 # or "npm" (https://registry.npmjs.org), "git" (https://github.com)
#   }
# }
#
# destination "tickets" {             # an MCP server: bivouac mcp tools tickets lists what it offers
#   url             = "https://tickets.example/mcp"
#   data_boundaries = ["personal"]
#   credential "tickets-token" {}
#   mcp {
#     credential = "tickets-token"    # lists tools for admins; calls go under grants
#   }
# }
#
# destination "notes" {               # the same as a program of this machine, in a sandbox
#   data_boundaries = ["personal"]    # without network, environment and credential
#   mcp {
#     command   = ["/usr/local/bin/notes-mcp", "--db", "/srv/notes/notes.db"]
#     read_only = ["/srv/notes"]
#   }
# }
#
# oauth2 "calendar-token" {           # the credential is a refresh token
#   token_url = "https://id.example/oauth/token"
#   client_id = "bivouac"
# }
#
# destination "calendar" {            # gets an access token of it
#   url = "https://api.calendar.example/v3"
#   credential "calendar-token" {}
#   pages {                           # tools that read get all pages in one answer
#     by     = "cursor"               # or "link", "number"
#     cursor = "meta.next"
#     items  = "data"
#   }
# }
#
# Commands on hosts (ssh, for tools of kind "ssh") and whatever else an engine issues
# (from) need a vault block too: README.md and vaultpolicy/README.md have examples.
#
# destination "weather" {
#   url     = "https://api.weather.example/v1"
#   methods = ["GET"]
#   credential "weather-token" {
#     header = "Authorization"
#     format = "Bearer {value}"
#   }
# }

caps {
  spend_usd_per_hour = 10
}
`
