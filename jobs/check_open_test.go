//go:build linux

package jobs_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"bivouac/edge/finding"
	"bivouac/jobs"
	"bivouac/test/engines/engine"
	"bivouac/test/engines/nomadserver"
)

// The server's doctor tries what Nomad lets in: nobody without a token, and nothing on
// the ports of its agents without a certificate. Each that is open is found.
func TestCheckOpen(t *testing.T) {
	nomadserver.Each(t, func(t *testing.T, p engine.Program) {
		finds := func(c jobs.Config, check string, level finding.Level, words ...string) {
			t.Helper()
			f := findings(t, c)[check]
			for _, w := range words {
				if f.Level != level || !strings.Contains(f.What+" "+f.Mend, w) {
					t.Errorf("%s: %+v, want %s with %q", check, f, level, w)
				}
			}
		}
		s := nomadserver.Start(t, p)
		setUp(t, s)
		c := byServer(t, s)
		finds(c, "nomad.rpc", finding.OK, "1 server(s) take no connection without a certificate")
		finds(c, "nomad.anonymous", finding.OK, "nothing is answered")
		finds(c, "nomad.tls", finding.OK, "holds until")
		if _, err := s.Root().ACLPolicies().Upsert(&api.ACLPolicy{Name: "anonymous", Rules: "node {\n policy = \"read\"\n}\nnamespace \"agents\" {\n policy = \"read\"\n}\n"}, nil); err != nil {
			t.Fatal(err)
		}
		finds(c, "nomad.anonymous", finding.Warning, "anybody reads nodes and jobs of namespace agents", "nomad acl policy delete anonymous")
		if _, err := s.Root().ACLPolicies().Delete("anonymous", nil); err != nil {
			t.Fatal(err)
		}
		finds(c, "nomad.anonymous", finding.OK, "nothing is answered")

		bare := nomadserver.StartBareRPC(t, p)
		setUp(t, bare)
		finds(byServer(t, bare), "nomad.rpc", finding.Problem, "without TLS", "verify_server_hostname = true")
	})
}
