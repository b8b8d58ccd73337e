package broker_test

import (
	"strconv"
	"strings"
	"testing"

	"bivouac/server/broker"
	"bivouac/server/broker/ssh/sshtest"
)

// A destination that is a host says how it is known, who signs in and what runs; the
// first rows are the rightful twins of the others. INV-10.
func TestSSHConfig(t *testing.T) {
	key := strconv.Quote(strings.TrimSpace(sshtest.Line(sshtest.NewKey(t).PublicKey())))
	const sound = `
vault {}
destination "web1" {
  url = "ssh://web1.example"
  credential "web1-ssh" {
    from "ssh" {
      role = "agents"
      principals = ["deploy"]
    }
  }
  ssh {
    user = "deploy"
    host_keys = [KEY]
    command "restart" {
      run = ["systemctl", "restart", "{unit}"]
      argument "unit" {
        pattern = "[a-z]+"
      }
    }
  }
}
`
	for name, c := range map[string]struct{ old, new, says string }{
		"sound":              {"", "", ""},
		"a port":             {"ssh://web1.example", "ssh://web1.example:2222", ""},
		"idempotent":         {"run = ", "idempotent = true\n      run = ", ""},
		"idempotent text":    {"run = ", "idempotent = \"perhaps\"\n      run = ", "a bool is required"},
		"a host authority":   {"host_keys", "host_ca", ""},
		"https":              {"ssh://web1.example", "https://web1.example", "must be ssh://"},
		"a user in the url":  {"ssh://web1.example", "ssh://deploy@web1.example", "user in the ssh block"},
		"trust on first use": {"host_keys = [KEY]", "", "no host is believed for what it shows first"},
		"no key":             {"[KEY]", `["web1.example ssh-ed25519 AAAA"]`, "is no public key"},
		"no command":         {"command \"restart\" {\n      run = [\"systemctl\", \"restart\", \"{unit}\"]\n      argument \"unit\" {\n        pattern = \"[a-z]+\"\n      }\n    }", "", "nothing could be run there"},
		"code":               {`["systemctl", "restart", "{unit}"]`, `["sh", "-c", "{code}", "{unit}"]`, "run as a program"},
		"a name":             {`command "restart"`, `command "Restart it"`, "names stand once"},
		"a timeout":          {"run = ", "timeout = \"1h\"\n      run = ", "a duration from"},
		"a pattern":          {"[a-z]+", "[a-z", "no regular expression"},
		"a user": {`"deploy"
    host`, `"-oProxyCommand=x"
    host`, "no name of a user"},
		"a stored value": {"    from \"ssh\" {\n      role = \"agents\"\n      principals = [\"deploy\"]\n    }\n", "", "gets nothing that is stored"},
		"of a database":  {"from \"ssh\" {\n      role = \"agents\"\n      principals = [\"deploy\"]", "from \"database\" {\n      role = \"x\"", "gets nothing that is stored"},
		"methods":        {"  ssh {", "  methods = [\"GET\"]\n  ssh {", "tools of kind \"ssh\" alone"},
		"mcp too":        {"  ssh {", "  mcp {}\n  ssh {", "tools of kind \"ssh\" alone"},
		"for http":       {"  ssh {\n    user = \"deploy\"\n    host_keys = [KEY]\n    command \"restart\" {\n      run = [\"systemctl\", \"restart\", \"{unit}\"]\n      argument \"unit\" {\n        pattern = \"[a-z]+\"\n      }\n    }\n  }\n", "", "it needs a destination with an ssh block"},
		"without vault":  {"vault {}", "", "needs a vault block"},
	} {
		text := sound
		if c.old != "" {
			if text = strings.Replace(sound, c.old, c.new, 1); text == sound {
				t.Errorf("%s: it changes nothing", name)
			}
		}
		_, err := broker.ParseConfig([]byte(strings.ReplaceAll(text, "KEY", key)), "broker.hcl")
		if (c.says == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "broker.hcl")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
