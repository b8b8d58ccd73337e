//go:build linux

package intentions_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac/consul"
	"bivouac/consul/intentions"
	"bivouac/consul/pathstest"
	"bivouac/consul/plan"
	"bivouac/consul/settings"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

func TestMain(m *testing.M) { os.Exit(consulserver.Main(m)) }

// port is the Paths port on a real Consul, with the rights that setup gives it.
type port struct {
	*intentions.Server
	t  *testing.T
	at *consulserver.Server
}

// block is a consul block as an operator writes it.
func block(t *testing.T, text, dir string) (settings.Config, error) {
	t.Helper()
	file, diags := hclsyntax.ParseConfig([]byte(text), "broker.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return settings.Decode(settings.Broker, file.Body, dir, func(string) string { return "" })
}

// way to a server: its address may be a proxy's, and the token's file is the test's.
type way struct {
	address, token string
	fresh          time.Duration
	grace          time.Duration
	names          []string
}

func open(t *testing.T, at *consulserver.Server, w way) port {
	t.Helper()
	c, err := block(t, "address = \""+w.address+"\"\nca_file = \""+at.CAFile()+"\"\ntoken_file = \""+w.token+"\"\n", "/")
	if err != nil {
		t.Fatal(err)
	}
	client, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s, err := intentions.New(intentions.Params{Source: client, Destinations: w.names, Fresh: w.fresh, Grace: w.grace, Config: &c})
	if err != nil {
		t.Fatal(err)
	}
	return port{s, t, at}
}

// run it until the test ends. News arrive on the channel.
func (p port) run() <-chan struct{} {
	ctx, cancel := context.WithCancel(p.t.Context())
	news, done := make(chan struct{}, 1024), make(chan error, 1)
	go func() { done <- p.Run(ctx, func() { news <- struct{}{} }) }()
	p.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	})
	return news
}

// entryOf an intention, as Consul takes it. An old server knows fewer questions about
// headers.
func entryOf(in consul.Intention) *api.ServiceIntentionsConfigEntry {
	action := map[bool]api.IntentionAction{true: api.IntentionActionAllow, false: api.IntentionActionDeny}
	out := &api.ServiceIntentionsConfigEntry{Kind: api.ServiceIntentions, Name: in.Destination}
	for _, s := range in.Sources {
		x := &api.SourceIntention{Name: s.Name, Type: api.IntentionSourceConsul}
		if len(s.Permissions) == 0 {
			x.Action = action[s.Allow]
		}
		for _, p := range s.Permissions {
			x.Permissions = append(x.Permissions, &api.IntentionPermission{Action: action[p.Allow], HTTP: httpOf(p.HTTP)})
		}
		out.Sources = append(out.Sources, x)
	}
	return out
}

func httpOf(h consul.HTTP) *api.IntentionHTTPPermission {
	expr := func(text string) string { return strings.TrimSuffix(strings.TrimPrefix(text, `\A(?:`), `)\z`) }
	out := &api.IntentionHTTPPermission{PathExact: h.PathExact, PathPrefix: h.PathPrefix, Methods: h.Methods}
	if h.PathRegex != nil {
		out.PathRegex = expr(h.PathRegex.String())
	}
	for _, x := range h.Header {
		y := api.IntentionHTTPHeaderPermission{
			Name: x.Name, Present: x.Present, Exact: x.Exact, Prefix: x.Prefix, Suffix: x.Suffix, Contains: x.Contains, Invert: x.Invert, IgnoreCase: x.IgnoreCase,
		}
		if x.Regex != nil {
			y.Regex = expr(x.Regex.String())
		}
		out.Header = append(out.Header, y)
	}
	return out
}

// Knows reports what this release of Consul can be asked about a header.
func (p port) Knows(h consul.Header) bool { return h.Contains == "" && !h.IgnoreCase }

// write an entry as somebody with the right does.
func write(t *testing.T, at *consulserver.Server, entries ...api.ConfigEntry) {
	t.Helper()
	root := at.Root(t)
	for _, e := range entries {
		if _, _, err := root.ConfigEntries().Set(e, nil); err != nil {
			t.Fatalf("%s %s: %v", e.GetKind(), e.GetName(), err)
		}
	}
}

func pair(source, destination string, allow bool) *api.ServiceIntentionsConfigEntry {
	return entryOf(consul.Intention{Destination: destination, Sources: []consul.Source{{Name: source, Allow: allow}}})
}

// Replace makes the given entries the only ones.
func (p port) Replace(t *testing.T, all ...consul.Intention) {
	t.Helper()
	entries := p.at.Root(t).ConfigEntries()
	there, _, err := entries.List(api.ServiceIntentions, nil)
	if err != nil {
		t.Fatal(err)
	}
	keep := map[string]bool{}
	for _, in := range all {
		keep[in.Destination] = true
		write(t, p.at, entryOf(in))
	}
	for _, e := range there {
		if !keep[e.GetName()] {
			if _, err := entries.Delete(api.ServiceIntentions, e.GetName(), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// overHTTP makes every service one that speaks HTTP, without which Consul takes no
// permissions.
func overHTTP(t *testing.T, at *consulserver.Server) {
	t.Helper()
	write(t, at, &api.ProxyConfigEntry{Kind: api.ProxyDefaults, Name: api.ProxyConfigGlobal, Config: map[string]any{"protocol": "http"}})
}

// names of the port's suite.
var suiteNames = []string{"db", "cache", "queue", "anything", "x", "y", "api", "headers", "wide", "elsewhere"}

// The port's suite, on real intentions.
func TestPaths(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		overHTTP(t, at)
		token, _ := at.Token(t, plan.Rules(suiteNames), 0)
		pathstest.Run(t, func(t *testing.T) pathstest.Source {
			s := open(t, at, way{address: at.Address(), token: token, names: suiteNames, fresh: time.Hour, grace: time.Hour})
			s.Replace(t)
			return s
		})
	})
}

// What stands in the folder is what Consul takes, and what files mean too.
func TestExamplesAreAccepted(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		files, err := filepath.Glob("../examples/*.hcl")
		if err != nil || len(files) < 4 {
			t.Fatalf("examples: %v, %v", files, err)
		}
		for _, name := range files { // by name: the protocol comes before what needs it
			abs, err := filepath.Abs(name)
			if err != nil {
				t.Fatal(err)
			}
			args := []string{"config", "write", abs}
			if strings.Contains(name, "policy") {
				args = []string{"acl", "policy", "create", "-name", strings.TrimSuffix(filepath.Base(name), ".hcl"), "-rules", "@" + abs}
			}
			if said, err := at.Run(t, args...); err != nil {
				t.Errorf("%s: %v\n%s", name, err, said)
			}
		}
		broken := filepath.Join(t.TempDir(), "broken.hcl")
		if err := os.WriteFile(broken, []byte("Kind = \"service-intentions\"\nName = \"x\"\nSauces = []\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if said, err := at.Run(t, "config", "write", broken); err == nil {
			t.Errorf("a broken entry was accepted: %s", said)
		}
	})
}

func parseFile(name string) (consul.Intention, error) {
	src, err := os.ReadFile(name)
	if err != nil {
		return consul.Intention{}, err
	}
	return consul.Parse(src, name)
}
