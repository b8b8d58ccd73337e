//go:build linux

package catalog_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac/consul/catalog"
	"bivouac/consul/client"
	"bivouac/consul/settings"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

func TestMain(m *testing.M) { os.Exit(consulserver.Main(m)) }

// entry of a service of the test, at a server that may be another's, with a token's file.
func entry(t *testing.T, at *consulserver.Server, name, token string, ready func(context.Context) error) *catalog.Entry {
	t.Helper()
	text := "address = \"" + at.Address() + "\"\nca_file = \"" + at.CAFile() + "\"\ntoken_file = \"" + token + "\"\n" +
		"service {\n  name = \"" + name + "\"\n  tags = [\"prod\"]\n  meta = { team = \"red\" }\n  ttl = \"3s\"\n}\n"
	file, diags := hclsyntax.ParseConfig([]byte(text), "broker.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	c, err := settings.Decode(settings.Broker, file.Body, "/", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	asked, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(asked.Close)
	e, err := catalog.New(catalog.Params{
		Agent: asked, Token: client.TokenFile(c.TokenPath()), Service: *c.Service, Of: settings.Broker, Instance: "one",
		Address: "10.0.0.7:7402", Version: "v1.2.3", Ready: ready,
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// run an entry; the returned function ends it, and waits until it has left.
func run(t *testing.T, e *catalog.Entry) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	ended := false
	stop = func() {
		t.Helper()
		if cancel(); !ended {
			ended = true
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

// sees waits until the catalog says it of a service's one instance; "" is that none is there.
func sees(t *testing.T, c *api.Client, name, status string) *api.ServiceEntry {
	t.Helper()
	const patience = 3 * time.Minute // a machine may have much else to do
	var last []*api.ServiceEntry
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if last, _, err = c.Health().Service(name, "", false, nil); err == nil {
			switch {
			case status == "" && len(last) == 0:
				return nil
			case len(last) == 1 && last[0].Checks.AggregatedStatus() == status:
				return last[0]
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("%s is not %q in the catalog: %+v, %v", name, status, last, err)
	return nil
}

// A service is critical until the process is ready, passing while it says so, and gone once
// it stopped in order.
func TestReal(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		name := at.Prefix() + "broker"
		token, _ := at.Token(t, "service \""+name+"\" { policy = \"write\" }\n", 0)
		var ready atomic.Bool
		e := entry(t, at, name, token, func(context.Context) error {
			if ready.Load() {
				return nil
			}
			return errors.New("the feed is not there yet")
		})
		root := at.Root(t)
		stop := run(t, e)
		s := sees(t, root, name, "critical")
		for _, c := range s.Checks {
			if c.CheckID == e.ID()+":ready" && c.Output != "" && c.Output != "the feed is not there yet" {
				t.Errorf("the check says %q", c.Output)
			}
		}
		ready.Store(true)
		s = sees(t, root, name, "passing")
		if m := s.Service.Meta; m["version"] != "v1.2.3" || m["team"] != "red" || m["process"] != "bivouac-broker" || s.Service.Tags[0] != "prod" || s.Service.Address != "10.0.0.7" || s.Service.Port != 7402 {
			t.Errorf("%+v", s.Service)
		}
		ready.Store(false)
		sees(t, root, name, "critical")
		ready.Store(true)
		sees(t, root, name, "passing")
		stop()
		sees(t, root, name, "")
	})
}

// A process that says nothing any more, as one that was killed, is critical once its time
// to live is over, and a restart takes its place.
func TestRealKilled(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		name := at.Prefix() + "broker"
		token, _ := at.Token(t, "service \""+name+"\" { policy = \"write\" }\n", 0)
		var hangs atomic.Bool
		hung := make(chan struct{})
		e := entry(t, at, name, token, func(context.Context) error {
			if hangs.Load() {
				<-hung
			}
			return nil
		})
		root := at.Root(t)
		stop := run(t, e)
		sees(t, root, name, "passing")
		hangs.Store(true)
		sees(t, root, name, "critical")
		hangs.Store(false)
		again := run(t, entry(t, at, name, token, nil)) // another process of the same instance
		sees(t, root, name, "passing")
		close(hung)
		stop()
		again()
	})
}

// A token that is wrong, lacks the right or has ended keeps the service out and stops
// nothing; once the file has a right one the service is there. A token that is replaced is
// the one that the agent writes with.
func TestRealToken(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		name := at.Prefix() + "broker"
		rules := "service \"" + name + "\" { policy = \"write\" }\n"
		file, _ := at.Token(t, "service \""+name+"\" { policy = \"read\" }\n", 0)
		root := at.Root(t)
		e := entry(t, at, name, file, nil)
		stop := run(t, e)
		consulserver.WriteToken(t, file, "5a1f6f0e-0000-4000-8000-000000000000")
		first, made := at.Token(t, rules, 0)
		sees(t, root, name, "")
		put := func(from string) {
			t.Helper()
			b, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			consulserver.WriteToken(t, file, string(b[:len(b)-1]))
		}
		put(first)
		sees(t, root, name, "passing")
		second, _ := at.Token(t, rules, 0)
		put(second)
		if _, err := root.ACL().TokenDelete(made.AccessorID, nil); err != nil {
			t.Fatal(err)
		}
		sees(t, root, name, "passing")
		stop() // with the new token alone
		sees(t, root, name, "")
	})
}

// An agent that is away when the process starts, and one that forgets everything, have the
// service once they are there.
func TestRealAway(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		token := t.TempDir() + "/token"
		consulserver.WriteToken(t, token, at.Management())
		at.Stop(t)
		run(t, entry(t, at, "broker", token, nil))
		at.Start(t)
		consulserver.WriteToken(t, token, at.Management())
		sees(t, at.Root(t), "broker", "passing")
		at.Kill(t)
		at.Start(t)
		consulserver.WriteToken(t, token, at.Management())
		sees(t, at.Root(t), "broker", "passing")
	})
}
