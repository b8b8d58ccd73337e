//go:build linux

package plan_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"bivouac/consul/client"
	"bivouac/consul/plan"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

func TestMain(m *testing.M) { os.Exit(consulserver.Main(m)) }

// asker of a server with a token.
func asker(t *testing.T, at *consulserver.Server, token string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Address: at.Address(), CAFile: at.CAFile(), Token: func() (secret.Value, error) { return client.Token(token) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func diff(t *testing.T, p plan.Plan, c *client.Client) plan.Diff {
	t.Helper()
	d, open, err := p.Diff(t.Context(), c)
	if err != nil || open {
		t.Fatalf("open=%v, %v", open, err)
	}
	return d
}

// Applied to an empty Consul, everything is there, a token of the role may read what the
// broker asks and write nothing, and the second time nothing differs.
func TestApplyTwice(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		admin, root := asker(t, at, at.Management()), at.Root(t)
		wanted := plan.New(plan.DefaultName, []string{"weather", "model-main"})
		d := diff(t, wanted, admin)
		if len(d) != len(wanted.Items) {
			t.Fatalf("in an empty Consul %d of %d differ:\n%s", len(d), len(wanted.Items), d)
		}
		if err := d.Apply(t.Context(), admin, nil); err != nil {
			t.Fatal(err)
		}
		if d := diff(t, wanted, admin); len(d) != 0 {
			t.Errorf("after the first time:\n%s", d)
		}
		token, _, err := root.ACL().TokenCreate(&api.ACLToken{Roles: []*api.ACLLink{{Name: plan.DefaultName}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		broker := asker(t, at, token.SecretID)
		for name, may := range map[string]bool{"weather": true, "model-main": true, "other": false} {
			_, err := broker.Match(t.Context(), name, 0, 0)
			if (err == nil) != may || !may && client.KindOf(err) != client.Refused {
				t.Errorf("reading the intentions of %s: %v", name, err)
			}
		}
		entry := map[string]any{"Kind": "service-intentions", "Name": "weather", "Sources": []any{map[string]any{"Name": "agent-a", "Action": "allow"}}}
		if err := broker.Put(t.Context(), "config", nil, entry); client.KindOf(err) != client.Refused {
			t.Errorf("the broker's token writes intentions: %v", err)
		}
		if err := admin.Put(t.Context(), "config", nil, entry); err != nil {
			t.Errorf("and the admin's does not: %v", err)
		}
	})
}

// What somebody changed is changed back, what is not ours stays, and what somebody decided
// otherwise is not touched.
func TestDrift(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		admin, root := asker(t, at, at.Management()), at.Root(t)
		set := func(e api.ConfigEntry) {
			t.Helper()
			if _, _, err := root.ConfigEntries().Set(e, nil); err != nil {
				t.Fatal(err)
			}
		}
		set(&api.ServiceIntentionsConfigEntry{Kind: api.ServiceIntentions, Name: "*", Sources: []*api.SourceIntention{{Name: "web", Action: "allow"}}})
		set(&api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: "weather", MaxInboundConnections: 7})
		wanted := plan.New(plan.DefaultName, []string{"weather"})
		if err := diff(t, wanted, admin).Apply(t.Context(), admin, nil); err != nil {
			t.Fatal(err)
		}
		got, _, err := root.ConfigEntries().Get(api.ServiceIntentions, "*", nil)
		if err != nil || len(got.(*api.ServiceIntentionsConfigEntry).Sources) != 2 {
			t.Errorf("the other source of the entry: %+v, %v", got, err)
		}
		got, _, err = root.ConfigEntries().Get(api.ServiceDefaults, "weather", nil)
		if e, ok := got.(*api.ServiceConfigEntry); err != nil || !ok || e.MaxInboundConnections != 7 || e.Protocol != "http" {
			t.Errorf("the other field of the entry: %+v, %v", got, err)
		}
		more := plan.New(plan.DefaultName, []string{"weather", "tickets"})
		d := diff(t, more, admin)
		if len(d) != 2 || d[0].State != plan.Differs || !strings.Contains(d.String(), `+ service "tickets"`) {
			t.Errorf("one more destination:\n%s", d)
		}
		stale := d
		if err := d.Apply(t.Context(), admin, nil); err != nil || len(diff(t, more, admin)) != 0 {
			t.Errorf("one more destination: %v", err)
		}
		set(&api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: "tickets", Protocol: "http2"})
		if err := stale[1:].Apply(t.Context(), admin, nil); client.KindOf(err) != client.Changed {
			t.Errorf("what somebody wrote in between was overwritten: %v", err)
		}
		set(&api.ServiceIntentionsConfigEntry{Kind: api.ServiceIntentions, Name: "*", Sources: []*api.SourceIntention{{Name: "*", Action: "allow"}}})
		set(&api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: "tickets", Protocol: "tcp"})
		d = diff(t, more, admin)
		if len(d) != 2 || d[0].State != plan.InTheWay || d[1].State != plan.InTheWay {
			t.Fatalf("what somebody decided otherwise:\n%s", d)
		}
		if err := d.Apply(t.Context(), admin, nil); err == nil || len(diff(t, more, admin)) != 2 {
			t.Errorf("it was touched: %v", err)
		}
	})
}

// Two brokers in one Consul: the second that asks for the name of the first is refused,
// and gets its own by another; neither changes what the other has.
func TestTwoBrokers(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		admin := asker(t, at, at.Management())
		apply := func(p plan.Plan) error { return diff(t, p, admin).Apply(t.Context(), admin, nil) }
		first := plan.New(plan.DefaultName, []string{"weather"})
		if err := apply(first); err != nil {
			t.Fatal(err)
		}
		if err := apply(plan.New(plan.DefaultName, []string{"tickets"})); protocol.CodeOf(err) != protocol.CodeConflict || !strings.Contains(err.Error(), `is about service "weather" too`) {
			t.Errorf("the first one's policy: %v", err)
		}
		if d := diff(t, first, admin); len(d) != 0 {
			t.Errorf("what the first one has was changed:\n%s", d)
		}
		second := plan.New("second-broker", []string{"tickets"})
		if err := apply(second); err != nil {
			t.Error(err)
		}
		if d := append(diff(t, first, admin), diff(t, second, admin)...); len(d) != 0 {
			t.Errorf("side by side:\n%s", d)
		}
		// One that asks about more than the policy has is the same one, grown.
		if err := apply(plan.New("second-broker", []string{"tickets", "mail"})); err != nil {
			t.Error(err)
		}
	})
}

// The script makes from nothing what Apply makes.
func TestScriptRuns(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		wanted := plan.New("second-broker", []string{"weather"})
		dir := t.TempDir()
		if err := os.Symlink(p.Path, filepath.Join(dir, "consul")); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh")
		cmd.Stdin = strings.NewReader(wanted.Script())
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir, "CONSUL_HTTP_ADDR=" + at.Address(), "CONSUL_CACERT=" + at.CAFile(), "CONSUL_HTTP_TOKEN=" + at.Management()}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if d := diff(t, wanted, asker(t, at, at.Management())); len(d) != 0 {
			t.Errorf("after the script:\n%s", d)
		}
	})
}

// Whoever may not is told so, and a token that is none is told apart from a policy that is
// not there.
func TestWithoutRights(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		file, _ := at.Token(t, "", 0)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		wanted := plan.New(at.Prefix()+"broker", []string{"weather"})
		for want, token := range map[client.Kind]string{client.Refused: strings.TrimSpace(string(b)), client.NoToken: "00000000-0000-4000-8000-000000000bad"} {
			if _, _, err := wanted.Diff(context.Background(), asker(t, at, token)); client.KindOf(err) != want {
				t.Errorf("want %s: %v", want, err)
			}
		}
	})
}
