package harness

import (
	"context"
	"os"
	"strings"
	"time"

	"bivouac/consul/consultest"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/broker"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/keyring"
)

// Route is the model route of every world, Destination that of its http tools, and
// MCPDestination that of its MCP server, which Tools is too, at /mcp.
const (
	Route          = "main"
	Destination    = "tools"
	MCPDestination = "tickets"
)

// brokerConfig is what an operator would write.
const brokerConfig = `
pool    = "default"
servers = ["` + runnerAddr + `"]
listen  = "` + brokerAddr + `"
model "` + Route + `" {
  base_url          = "http://` + providerHost + `/v1"
  allow_private     = true
  model             = "scripted"
  credential        = "` + modelCredential + `"
  data_boundaries   = ["personal"]
  max_output_tokens = 2000
  price {
    input_usd_per_mtok  = 1
    output_usd_per_mtok = 5
  }
}
destination "` + Destination + `" {
  url           = "http://` + toolsHost + `"
  allow_private = true
  credential "` + ToolCredential + `" {}
  credential "` + OtherCredential + `" {}
}
destination "` + MCPDestination + `" {
  url           = "http://` + toolsHost + `/mcp"
  allow_private = true
  credential "` + ToolCredential + `" {}
  mcp {
    credential = "` + ToolCredential + `"
  }
}
`

// Times of every broker: its own defaults, which are the product's.
const (
	// FeedLimit is the oldest feed under which a request is admitted.
	FeedLimit = 2 * time.Second
	// FlowTTL is how long an admitted flow outlives the feed.
	FlowTTL = 15 * time.Second
	// FeedEvery is the feed's heartbeat, and how often open flows are judged.
	FeedEvery = 250 * time.Millisecond
)

// makeKeys makes the keyring and the code with which the server enrols.
func (w *World) makeKeys() {
	w.t.Helper()
	dir := w.path("broker", "keys")
	_, err := keyring.Init(dir)
	w.must(err)
	w.keys, err = keyring.Open(dir)
	w.must(err)
	code, err := keyring.NewServerCode(dir, time.Hour)
	w.must(err)
	w.must(os.WriteFile(w.path("server", "code"), []byte(code.Reveal()+"\n"), 0o600))
	w.AllowAll()
}

// AllowAll lets every agent of every tenant reach the route and the destinations.
func (w *World) AllowAll() {
	w.Paths.Set(consultest.Allow(broker.ModelDestination(Route), "*"), consultest.Allow(Destination, "*"), consultest.Allow(MCPDestination, "*"))
}

func (w *World) startBroker() {
	w.t.Helper()
	text := brokerConfig
	if w.opt.Format != "" {
		text = strings.Replace(text, "  model             =", "  format            = \""+w.opt.Format+"\"\n  model             =", 1)
	}
	cfg, err := broker.ParseConfig([]byte(text), w.path("broker", "broker.hcl"))
	w.must(err)
	b, err := broker.New(cfg, broker.Ports{
		Authority: w.keys, Root: w.keys, Paths: w.Paths, ResetKey: w.keys.ResetKey(),
		CallLog: w.path("broker", "calls.log"), SpendFile: w.path("broker", "spend.json"), SliceFile: w.path("broker", "slices.log"),
		Feed: w.net.Network(brokerIP), Egress: w.outside(), Elapsed: w.elapsed, Log: w.Log.logger(Broker),
	})
	w.must(err)
	packets, listener, err := w.net.Listen(brokerAddr)
	w.must(err)
	w.broker.now = run(func(ctx context.Context) error { return b.Run(ctx, packets, listener) })
}

// KillBroker ends the broker without a word to anybody; its files stay.
func (w *World) KillBroker() {
	w.t.Helper()
	w.Partition(Broker)
	w.broker.stop(w.t)
}

// StartBroker starts it again, with the same keyring and call log.
func (w *World) StartBroker() {
	w.t.Helper()
	w.startBroker()
	w.Heal(Broker)
}

// giveRouteKey puts the provider's key into the keyring, sealed by the person
// who has it: the server passes on what it cannot read.
func (w *World) giveRouteKey() {
	w.t.Helper()
	w.admin.PutCredential(modelCredential, ModelKey)
}

// PutCredential seals a credential for the broker and stores it.
func (p *Person) PutCredential(name, value string) {
	p.w.t.Helper()
	_, err := p.Credentials.PutCredential(p.ctx(), &apiv1.PutCredentialRequest{
		Name: name, Sealed: authoritytest.Seal(p.w.t, p.w.keys, name, value),
	})
	p.w.must(err)
}

// Grant gives an agent of this person the credentials, and returns the grant.
func (p *Person) Grant(agent string, credentials ...string) *apiv1.Grant {
	p.w.t.Helper()
	res, err := p.Grants.CreateGrant(p.ctx(), &apiv1.CreateGrantRequest{Agent: agent, Credentials: credentials})
	p.w.must(err)
	return res.GetGrant()
}

// GrantAlive asks the keyring itself.
func (w *World) GrantAlive(id string) bool {
	w.t.Helper()
	err := w.keys.Alive(w.t.Context(), protocol.GrantID(id))
	if err != nil && protocol.CodeOf(err) != protocol.CodePermissionDenied {
		w.t.Fatal(err)
	}
	return err == nil
}
