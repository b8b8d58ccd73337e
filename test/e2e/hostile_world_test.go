//go:build linux

package e2e

import (
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"bivouac/test/e2e/stack"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/vaulttest"
)

// thief is an agent all of whose tools lead to hostile upstreams; burglar runs what it
// likes in sandboxes.
const thief = `
agent "thief" {
  profile       = "enterprise"
  placement     = "service"
  data_boundary = "internal"
  instructions  = "You take what you can get."
  model { route = "scripted" }
  device_tools = ["files.list", "files.read"]
  limits {
    max_model_calls = 500
    max_tool_calls  = 2000
    max_tokens      = 20000000
    max_cost_usd    = 100
    max_wall        = "30m"
  }
TOOLS}
`

const burglar = `
agent "burglar" {
  profile       = "coding"
  data_boundary = "internal"
  trust         = "trusted"
  instructions  = "You take what you can get."
  model { route = "scripted" }
  sandbox_tools = ["shell", "read", "write", "list"]
}
`

// takes are the tools of the thief, each with a credential of another kind.
var takes = []struct{ alias, destination, credential string }{
	{"take_key", "mirror", "mirror-key"},
	{"take_db", "mirror", "mirror-db"},
	{"take_split", "mirror", "mirror-split"},
	{"take_sign", "mirror", "mirror-sign"},
	{"take_token", "mirror", "mirror-token"},
	{"take_cert", "mirror-tls", "mirror-cert"},
	{"take_pages", "pages", "mirror-key"},
}

// hostileArguments are put where the mode of an answer stands.
var hostileArguments = []string{"{value}", "{mode}", "text\r\nX-Other: 1", "../../text", "%2e%2e%2ftext", "text&mode=json", "http://127.0.0.1/", "${env.HOME}", "Authorization"}

// thiefSource is the definition with its tools.
func thiefSource() string {
	var b strings.Builder
	for _, take := range takes {
		fmt.Fprintf(&b, `
  tool %q {
    kind        = "http"
    description = "Shows what was sent."
    destination = %q
    method      = "GET"
    path        = "/%s?mode={mode}"
    credential  = %q
    effect      = "R0"
    recovery    = "idempotent"
    input       = { type = "object", additionalProperties = false, required = ["mode"], properties = { mode = { type = "string" } } }
  }
`, take.alias, take.destination, take.alias, take.credential)
	}
	b.WriteString(`
  tool "search" {
    kind        = "mcp"
    description = "Finds tickets."
    destination = "tickets"
    credential  = "tickets-key"
    tool        = "search"
    effect      = "R0"
    recovery    = "idempotent"
    input       = { type = "object", additionalProperties = false, required = ["mode"], properties = { mode = { type = "string" } } }
  }
`)
	return strings.Replace(thief, "TOOLS", b.String(), 1)
}

// doubtful are modes after which nobody knows what became of the call: what reads is
// sent again for a while.
var doubtful = []string{"broken", "encoding", "gzip", "half", "no-http", "short"}

// modesOf a tool: everything that its upstream can do, and what it cannot, with an end.
func modesOf(alias string) []string {
	modes := slices.Concat([]string{"plain"}, slices.Sorted(maps.Keys(reflections)), hostileArguments)
	if alias == "search" {
		modes = slices.Concat([]string{"plain"}, slices.Sorted(maps.Keys(results)), slices.Sorted(maps.Keys(others)), hostileArguments)
	}
	if slices.Contains([]string{"take_split", "take_sign", "take_token", "take_cert", "take_pages"}, alias) {
		modes = usual
	}
	return slices.DeleteFunc(slices.Clone(modes), func(m string) bool { return slices.Contains(doubtful, m) })
}

// usual modes, for credentials that travel as others do in which every mode is tried.
var usual = []string{"plain", "text", "json-escapes", "base64", "hex", "percent", "headers", "link", "status-401", "status-500", "redirect-307", "torn"}

// hostileScript is a model on the attacker's side: it calls each tool in every mode and
// says what came back.
func hostileScript() string {
	var b strings.Builder
	for _, alias := range append(slices.Collect(func(yield func(string) bool) {
		for _, take := range takes {
			if !yield(take.alias) {
				return
			}
		}
	}), "search") {
		fmt.Fprintf(&b, "rule %q {\n  when {\n    user_contains = %q\n    results = 0\n  }\n", alias, "use "+alias)
		for _, mode := range modesOf(alias) {
			fmt.Fprintf(&b, "  call %q { arguments = { mode = %s } }\n", alias, hclText(mode))
		}
		fmt.Fprintf(&b, "}\nrule %q {\n  when {\n    user_matches = %q\n    results = 0\n  }\n  call %q { arguments = { mode = user.mode } }\n}\n",
			"doubt "+alias, "doubt "+alias+" (?P<mode>\\S+)", alias)
	}
	return b.String() + tenantScript
}

// hclText is a text of HCL, without its templates.
func hclText(s string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(fmt.Sprintf("%q", s))
}

// hostile is a deployment of which everything beside server, broker and Vault is on
// the attacker's side.
type hostile struct {
	*person
	hoard    *hoard
	server   *vaulttest.Server
	record   string // of what passed the server
	mirror   *mirror
	gossip   *gossip
	tokens   *tokens
	loot     *loot
	reports  *reports
	traces   *collector
	evidence *evidence
}

func newHostile(t *testing.T, p engine.Program) *hostile {
	x := &hostile{hoard: newHoard(), server: vaulttest.Start(t, p), loot: newLoot(t), reports: newReports(t), traces: newCollector(t), evidence: newEvidence(t)}
	x.record = record(t, x.server)
	x.reports.engine(t, x.server)
	authority := certificates(t, x.server)
	signatures(t, x.server)
	x.mirror, x.gossip = newMirror(t, x.hoard, x.loot, authority), newGossip(t, x.loot)
	x.mirror.lets = func(user, password string) error { return x.reports.letsIn(t.Context(), user, password) }
	refresh := x.hoard.stored("refresh-token")
	x.tokens = newTokens(t, x.hoard, refresh)
	ca := filepath.Join(t.TempDir(), "mirror.pem")
	v := &stack.Vault{Address: x.server.Address(), CAFile: x.server.CAFile(), Token: x.server.RootToken(), AuditFile: x.server.AuditFile(),
		Command: p.Command, Home: t.TempDir(), Blocks: x.blocks(ca), Reached: []string{"mirror", "mirror-tls", "pages", "tickets"},
		Stored: map[string]string{"mirror-key": x.hoard.stored("key"), "mirror-token": refresh, "tickets-key": x.hoard.stored("mcp-key"), "tickets-lister": x.hoard.stored("mcp-lister")}}
	x.person = &person{t: t}
	x.write(ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: x.mirror.mutual.Certificate().Raw})), 0o644)
	s := newStack(t, stack.Config{Script: hostileScript(), Vault: v, Watched: stack.Watched{Collector: x.traces.URL, Numbers: true}})
	x.person = first(t, s)
	x.hoard.file(t, "model key", s.Path("secrets", "scripted-key"))
	x.hoard.file(t, "secret id", s.Path("broker", "secret-id"))
	x.hoard.keyring(t, s.Path("broker", "keyring.key"))
	x.settle()
	return x
}

func (x *hostile) blocks(ca string) string {
	issues := func(name, engine, fields string) string {
		return fmt.Sprintf("  credential %q {\n    from %q {\n%s    }\n  }\n", name, engine, fields)
	}
	database := fmt.Sprintf("      mount = %q\n      role = %q\n", mountDatabase, roleReports)
	at := func(name, url, more string) string {
		return fmt.Sprintf("destination %q {\n  url = %q\n  allow_private = true\n%s}\n", name, url, more)
	}
	const stored = "  credential %q {\n    header = %q\n    format = \"{value}\"\n  }\n"
	return at("mirror", x.mirror.open.URL, `  credential "mirror-key" {}`+"\n"+`  credential "mirror-token" {}`+"\n"+
		issues("mirror-db", "database", database)+
		issues("mirror-split", "database", database+"      username_header = \"X-User\"\n      password_header = \"X-Password\"\n")+
		issues("mirror-sign", "transit", fmt.Sprintf("      mount = %q\n      key = %q\n", mountTransit, keyPartner))) +
		at("mirror-tls", x.mirror.mutual.URL, fmt.Sprintf("  ca_file = %q\n", ca)+
			issues("mirror-cert", "pki", fmt.Sprintf("      mount = %q\n      role = \"agents\"\n      common_name = \"{agent}.agents.example\"\n", mountPKI))) +
		at("pages", x.mirror.open.URL, `  credential "mirror-key" {}`+"\n  pages {\n    by = \"link\"\n  }\n") +
		at("tickets", x.gossip.URL+"/mcp", fmt.Sprintf(stored+stored, "tickets-key", keyHeader, "tickets-lister", listerHeader)+"  mcp {\n    credential = \"tickets-lister\"\n  }\n") +
		fmt.Sprintf("oauth2 \"mirror-token\" {\n  token_url = %q\n  client_id = \"bivouac\"\n  allow_private = true\n}\n", x.tokens.URL+"/token")
}

// allow an agent all that there is, in the name of a person.
func (x *hostile) allow(p *person, agent string) {
	x.t.Helper()
	args := []string{"grant", "create", "--agent", agent}
	for _, name := range []string{"mirror-key", "mirror-db", "mirror-split", "mirror-sign", "mirror-token", "mirror-cert", "tickets-key"} {
		args = append(args, "--credential", name)
	}
	p.must(args...)
}

// settle applies the agents and grants them what there is.
func (x *hostile) settle() {
	x.t.Helper()
	for name, source := range map[string]string{"thief": thiefSource(), "burglar": burglar} {
		file := x.Path("home", name+".hcl")
		x.write(file, source, 0o644)
		x.must("agents", "apply", file)
		x.allow(x.person, name)
	}
}

// collector takes a server's traces.
type collector struct {
	*httptest.Server
	mu  sync.Mutex // guards below
	got []byte
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		dump, err := httputil.DumpRequest(r, true)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got = fmt.Appendf(c.got, "%s %v\n", dump, err)
	}))
	t.Cleanup(c.Close)
	return c
}
