package server

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

// The consul block of server.hcl is read with the file, and what is wrong in it refuses the
// file.
func TestConsulBlock(t *testing.T) {
	for _, name := range []string{"CONSUL_HTTP_ADDR", "CONSUL_HTTP_TOKEN", "CONSUL_HTTP_TOKEN_FILE", "CONSUL_CACERT", "CONSUL_HTTP_SSL"} {
		t.Setenv(name, "")
	}
	c, err := LoadFile(Default(), write(t, "consul {\n  address = \"127.0.0.1:8500\"\n  service {\n    tags = [\"prod\"]\n  }\n  mesh {}\n}\n"))
	if err != nil || c.Consul == nil || c.Consul.Service.Name != "bivouac-server" || c.Consul.Service.Peer != "bivouac-broker" || c.Consul.Mesh == nil {
		t.Errorf("%+v, %v", c.Consul, err)
	}
	if c, err := LoadFile(Default(), write(t, "grace = \"1s\"\n")); err != nil || c.Consul != nil {
		t.Errorf("without a block: %+v, %v", c.Consul, err)
	}
	_, err = LoadFile(Default(), write(t, "consul {\n  fresh = \"5s\"\n  mesh {}\n}\n"))
	for _, want := range []string{"address is missing", "leave it out of server.hcl", "add service {}"} {
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}
