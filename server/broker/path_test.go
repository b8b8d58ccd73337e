package broker_test

import (
	"strings"
	"testing"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// Permissions hold the very request: its method, its path and what it carries. A
// request that none matches is not sent, and its credential is not minted.
func TestPermissions(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		permit := func(destination string, permissions ...consul.Permission) {
			w.paths.Set(consul.Intention{Destination: destination, Sources: []consul.Source{{Name: "agent-assistant", Permissions: permissions}, {Name: "*", Allow: true}}})
		}
		get := consul.Permission{Allow: true, HTTP: consul.HTTP{PathPrefix: "/api/forecast/", Methods: []string{"GET"}}}
		no := consul.Permission{HTTP: consul.HTTP{PathExact: "/api/forecast/Bern"}}
		for name, tc := range map[string]struct {
			permissions []consul.Permission
			change      func(*brokerv1.InvokeRequest)
			tenant      string
			want        protocol.Code
		}{
			"as permitted":    {permissions: []consul.Permission{get}},
			"an earlier deny": {permissions: []consul.Permission{no, get}, want: protocol.CodePolicyDenied},
			"a later deny":    {permissions: []consul.Permission{get, no}},
			"another method":  {permissions: []consul.Permission{get}, change: func(in *brokerv1.InvokeRequest) { in.Tool.Method = "POST" }, want: protocol.CodePolicyDenied},
			"another path":    {permissions: []consul.Permission{get}, change: func(in *brokerv1.InvokeRequest) { in.Tool.Path = "/archive/{city}" }, want: protocol.CodePolicyDenied},
			"escaped to fit":  {permissions: []consul.Permission{no, get}, change: func(in *brokerv1.InvokeRequest) { in.Tool.Path = "/%66orecast/{city}" }, want: protocol.CodePolicyDenied},
			"nothing allowed": {permissions: []consul.Permission{no}, want: protocol.CodePolicyDenied},
			"its host":        {permissions: []consul.Permission{{Allow: true, HTTP: consul.HTTP{Header: []consul.Header{{Name: "Host", Exact: "tools.example"}}}}}},
			"another host":    {permissions: []consul.Permission{{Allow: true, HTTP: consul.HTTP{Header: []consul.Header{{Name: "Host", Exact: "other.example"}}}}}, want: protocol.CodePolicyDenied},
			"credential header": {permissions: []consul.Permission{{Allow: true, HTTP: consul.HTTP{Header: []consul.Header{{Name: "authorization", Prefix: "x", Invert: true}}}}},
				want: protocol.CodePolicyDenied},
			"another agent, by the wildcard": {permissions: []consul.Permission{no}, tenant: "acme"},
		} {
			permit("weather", tc.permissions...)
			before := len(w.tools.requests())
			_, err := server.broker.Invoke(t.Context(), w.invocation(func(c *capability.Claims) {
				if tc.tenant != "" {
					c.TenantName = tc.tenant
				}
			}, tc.change))
			if got := protocol.CodeOf(protocol.FromConnect(err)); got != tc.want {
				t.Errorf("%s: %v, want %q", name, err, tc.want)
			}
			if sent := len(w.tools.requests()) > before; sent != (tc.want == "") {
				t.Errorf("%s: sent=%v", name, sent)
			}
		}
		// A model route is such a destination too.
		for path, want := range map[string]protocol.Code{"/v1/chat/completions": "", "/v1/embeddings": protocol.CodePolicyDenied} {
			permit("model-main", consul.Permission{Allow: true, HTTP: consul.HTTP{PathExact: path, Methods: []string{"POST"}}})
			_, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), "main", "hello"))
			if protocol.CodeOf(err) != want || (err != nil && !strings.Contains(err.Error(), "matches POST /v1/chat/completions")) {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
}
