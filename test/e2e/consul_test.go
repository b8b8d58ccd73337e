//go:build linux

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"bivouac/test/e2e/stack"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

const helloRule = `
rule "greet" {
  when { user_contains = "say hello" }
  text = "Hello."
}
`

// The processes themselves with a real Consul: server and broker are services in it, meet
// each other by its mesh beside their own certificates, and its intentions decide. One that
// is turned to deny ends what is open, of the server and of a runner, and the next call is
// refused; allowed again it works. The one between the two processes does the same to the
// whole link. A killed broker is critical, and a stopped one is gone.
func TestConsulEndToEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the whole product with a real Consul")
	}
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Start(t, p)
		consul := &stack.Consul{Address: at.Address(), CAFile: at.CAFile(), Token: at.Management(), Command: p.Command, Home: t.TempDir()}
		var agents []string
		for name, source := range map[string]string{"talker": revokeService + "}\n", "thinker": revokeRunner} {
			agents = append(agents, strings.ReplaceAll(source, "NAME", name))
		}
		s := newStack(t, stack.Config{Script: minutesOf("talk long", "50ms") + minutesOf("think long", "50ms") + helloRule, Agents: agents, Consul: consul})
		if err := s.UseMesh(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := member{person: first(t, s), consul: consul, root: at.Root(t)}
		c.addEdge(stack.EdgeConfig{Name: "machine"})
		c.shown("bivouac-server", api.HealthPassing)
		c.shown("bivouac-broker", api.HealthPassing)
		c.works()
		c.path()
		c.link()
		c.rootReplaced()
		c.processes()
	})
}

// member is a person of such a deployment.
type member struct {
	*person
	consul *stack.Consul
	root   *api.Client
}

func (c member) admin(args ...string) {
	c.t.Helper()
	if out, err := c.consul.Admin(c.t.Context(), args...); err != nil {
		c.t.Fatalf("consul %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// shown waits until the catalog says it of a service; "" is that it is not there.
func (c member) shown(service, status string) {
	c.t.Helper()
	await(c.t, service+" in the catalog", func() error {
		all, _, err := c.root.Health().Service(service, "", false, nil)
		switch {
		case err != nil:
			return err
		case status == "" && len(all) == 0:
			return nil
		case len(all) != 1 || all[0].Checks.AggregatedStatus() != status:
			return fmt.Errorf("%d instances, want %q: %+v", len(all), status, all)
		}
		return nil
	})
}

func (c member) hello() string {
	return c.submit("chat", "say hello", "--new", "--agent", "talker").ID
}

func (c member) works() {
	c.t.Helper()
	c.completed(c.hello())
}

// path: an intention about an agent, flipped under open streams of the server and of a
// runner.
func (c member) path() {
	c.t.Helper()
	turns := map[string]string{
		"talker":  c.submit("chat", "talk long", "--new", "--agent", "talker").ID,
		"thinker": c.submit("run", "think long", "--agent", "thinker", "--workspace", c.project("thinking", map[string]string{"a": "a\n"})).ID,
	}
	await(c.t, "the server's stream", func() error { return answering(c.Stack, "talk long") })
	await(c.t, "the runner's stream", func() error { return answering(c.Stack, "think long") })
	for _, agent := range []string{"thinker", "talker"} {
		turn := turns[agent]
		c.model("agent-" + agent)
		if got := c.ended(turn); got.GetState() != "FAILED" || got.GetReason() != "policy_denied" {
			c.t.Errorf("%s: turn %s is %s (%s): %s", agent, turn, got.GetState(), got.GetReason(), got.GetMessage())
		}
	}
	if got := c.ended(c.hello()); got.GetState() != "FAILED" || got.GetReason() != "policy_denied" {
		c.t.Errorf("the next call: %s (%s): %s", got.GetState(), got.GetReason(), got.GetMessage())
	}
	c.model()
	await(c.t, "the open path", func() error {
		if got := c.ended(c.hello()); got.GetState() != "COMPLETED" {
			return fmt.Errorf("%s (%s): %s", got.GetState(), got.GetReason(), got.GetMessage())
		}
		return nil
	})
}

// model is reached by all but those.
func (c member) model(denied ...string) {
	c.t.Helper()
	entry := &api.ServiceIntentionsConfigEntry{Kind: api.ServiceIntentions, Name: "model-scripted", Sources: []*api.SourceIntention{{Name: "*", Action: api.IntentionActionAllow}}}
	for _, name := range denied {
		entry.Sources = append(entry.Sources, &api.SourceIntention{Name: name, Action: api.IntentionActionDeny})
	}
	if _, _, err := c.root.ConfigEntries().Set(entry, nil); err != nil {
		c.t.Fatal(err)
	}
}

// link: the intention between the two processes.
func (c member) link() {
	c.t.Helper()
	turn := c.submit("chat", "talk long", "--new", "--agent", "talker").ID
	await(c.t, "the server's stream", func() error { return answering(c.Stack, "talk long") })
	c.admin("intention", "delete", "bivouac-server", "bivouac-broker") // default deny
	got := c.ended(turn)
	if got.GetState() == "COMPLETED" || !strings.Contains(got.GetMessage(), "bivouac-server may not reach bivouac-broker") {
		c.t.Errorf("under no intention turn %s is %s (%s): %s", turn, got.GetState(), got.GetReason(), got.GetMessage())
	}
	await(c.t, "an unready server", func() error {
		said, ready := c.readyz()
		if ready || !strings.Contains(said, "consul intention create -allow bivouac-server bivouac-broker") {
			return fmt.Errorf("ready %v: %s", ready, said)
		}
		return nil
	})
	c.shown("bivouac-server", api.HealthCritical)
	c.admin("intention", "create", "-allow", "bivouac-server", "bivouac-broker")
	if err := c.Ready(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.shown("bivouac-server", api.HealthPassing)
	c.works()
}

// rootReplaced in the middle of a turn: it goes on, and so does what is new.
func (c member) rootReplaced() {
	c.t.Helper()
	turn := c.submit("chat", "talk long", "--new", "--agent", "talker").ID
	await(c.t, "the server's stream", func() error { return answering(c.Stack, "talk long") })
	now, _, err := c.root.Connect().CAGetConfig(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	now.Config["PrivateKeyType"], now.Config["PrivateKeyBits"] = "ec", 384
	if _, err := c.root.Connect().CASetConfig(now, nil); err != nil {
		c.t.Fatal(err)
	}
	for range 5 {
		c.works()
	}
	if got := c.turn(turn); got.GetEndedAt() != nil {
		c.t.Errorf("the turn ended while the root was replaced: %s (%s): %s", got.GetState(), got.GetReason(), got.GetMessage())
	}
	c.must("cancel", turn)
}

// processes that are killed, come back, and stop.
func (c member) processes() {
	c.t.Helper()
	if err := c.Broker.Kill(); err != nil {
		c.t.Fatal(err)
	}
	c.shown("bivouac-broker", api.HealthCritical)
	if err := c.Broker.Start(); err != nil {
		c.t.Fatal(err)
	}
	if err := c.Ready(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.shown("bivouac-broker", api.HealthPassing)
	c.works()
	if err := c.Broker.End(); err != nil {
		c.t.Fatal(err)
	}
	c.shown("bivouac-broker", "")
	if err := c.Server.End(); err != nil {
		c.t.Fatal(err)
	}
	c.shown("bivouac-server", "")
}

// readyz is what the server says to a prober.
func (c member) readyz() (said string, ready bool) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.URL()+"/readyz", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error(), false
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error(), false
	}
	return string(b), resp.StatusCode == http.StatusOK
}
