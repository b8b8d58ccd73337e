package settings

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac/edge/protocol"
)

func ofProcess(t *testing.T, of Of, text string) (Config, error) {
	t.Helper()
	file, diags := hclsyntax.ParseConfig([]byte(text), string(of)+".hcl", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return Decode(of, file.Body, t.TempDir(), func(string) string { return "" })
}

// A service block has the names of its process and of the other one, unless it says others.
func TestService(t *testing.T) {
	const way = "address = \"127.0.0.1:8500\"\n"
	for of, want := range map[Of][2]string{Broker: {"bivouac-broker", "bivouac-server"}, Server: {"bivouac-server", "bivouac-broker"}} {
		c, err := ofProcess(t, of, way+"service {}\nmesh {}\n")
		if err != nil {
			t.Fatal(err)
		}
		if s := c.Service; s.Name != want[0] || s.Peer != want[1] || s.TTL() != 15*time.Second || s.DeregisterAfter() != 24*time.Hour || c.Mesh == nil {
			t.Errorf("%s: %+v", of, s)
		}
		c, err = ofProcess(t, of, way+`service {
  name = "gate"
  peer = "control"
  address = "10.0.0.7:7402"
  tags = ["prod"]
  meta = { team = "red" }
  ttl = "5s"
  deregister_after = "1h"
}
mesh {
  datacenters = ["dc1", "dc2"]
}
`)
		if s := c.Service; err != nil || s.Name != "gate" || s.Peer != "control" || s.Address != "10.0.0.7:7402" || s.Tags[0] != "prod" || s.Meta["team"] != "red" || s.TTL() != 5*time.Second || len(c.Mesh.Datacenters) != 2 {
			t.Errorf("%s: %+v, %v", of, s, err)
		}
		if c, err = ofProcess(t, of, way); err != nil || c.Service != nil || c.Mesh != nil {
			t.Errorf("%s without the blocks: %+v, %v", of, c, err)
		}
	}
}

// Every wrong combination is refused, all at once.
func TestServiceRefuses(t *testing.T) {
	const way = "address = \"127.0.0.1:8500\"\n"
	for name, tc := range map[string]struct {
		of   Of
		text string
		want string
	}{
		"mesh alone":       {Broker, "mesh {}\n", "add service {}"},
		"one name":         {Broker, "service {\n  name = \"bivouac-server\"\n}\n", "are both"},
		"a wildcard":       {Broker, "service {\n  name = \"*\"\n}\n", "service.name"},
		"dots":             {Broker, "service {\n  peer = \"a.b\"\n}\n", "service.peer"},
		"a hyphen first":   {Broker, "service {\n  name = \"-a\"\n}\n", "service.name"},
		"no port":          {Broker, "service {\n  address = \"broker.example\"\n}\n", "service.address"},
		"no machine":       {Broker, "service {\n  address = \"0.0.0.0:7402\"\n}\n", "names no machine"},
		"own meta":         {Broker, "service {\n  meta = { version = \"9\" }\n}\n", "Bivouac's own key"},
		"a key":            {Broker, "service {\n  meta = { \"a b\" = \"9\" }\n}\n", "the key"},
		"an empty tag":     {Broker, "service {\n  tags = [\"\"]\n}\n", "empty tag"},
		"ttl":              {Broker, "service {\n  ttl = \"1s\"\n}\n", "service.ttl"},
		"ttl, no time":     {Broker, "service {\n  ttl = \"soon\"\n}\n", "service.ttl"},
		"deregister":       {Broker, "service {\n  deregister_after = \"10s\"\n}\n", "service.deregister_after"},
		"a datacenter":     {Broker, "service {}\nmesh {\n  datacenters = [\"\"]\n}\n", "mesh.datacenters"},
		"unknown":          {Broker, "service {\n  port = 1\n}\n", "port"},
		"fresh elsewhere":  {Server, "fresh = \"5s\"\n", "leave it out of server.hcl"},
		"two":              {Broker, "service {}\nservice {}\n", "service"},
		"a mesh of a name": {Broker, "service {}\nmesh {\n  name = \"x\"\n}\n", "name"},
	} {
		_, err := ofProcess(t, tc.of, way+tc.text)
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	_, err := ofProcess(t, Broker, "service {\n  name = \"a.b\"\n  ttl = \"1s\"\n}\nmesh {\n  datacenters = [\"A\"]\n}\n")
	for _, want := range []string{"address", "service.name", "service.ttl", "mesh.datacenters"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("all at once: %v lacks %s", err, want)
		}
	}
}
