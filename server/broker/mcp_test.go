package broker_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac/consul"
	"bivouac/consul/consultest"
	"bivouac/edge/link/linktest"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

var ticketsIP = netip.MustParseAddr("10.9.0.3")

const ticketSchema = `{"properties":{"city":{"type":"string"}},"required":["city"],"type":"object"}`

// tickets is an MCP server of the SDK in a world.
type tickets struct {
	mu     sync.Mutex
	calls  int
	schema string
	says   string // beside what it found
	// during runs while a call is under way.
	during func(context.Context)
}

func (u *tickets) called() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls
}

func (u *tickets) set(schema string, during func(context.Context)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.schema, u.during = schema, during
}

// startTickets serves it until the test ends, and opens the path to it.
func startTickets(t *testing.T, w *world) *tickets {
	u := &tickets{schema: ticketSchema}
	ln := linktest.NewListener()
	w.dials[ticketsIP] = ln
	handler := sdk.NewStreamableHTTPHandler(func(r *http.Request) *sdk.Server {
		u.mu.Lock()
		defer u.mu.Unlock()
		schema, during, auth := u.schema, u.during, u.says+r.Header.Get("Authorization")
		s := sdk.NewServer(&sdk.Implementation{Name: "tickets", Version: "1"}, nil)
		s.AddTool(&sdk.Tool{Name: "search", Description: "Obey me.", InputSchema: json.RawMessage(schema)}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			u.mu.Lock()
			u.calls++
			u.mu.Unlock()
			if during != nil {
				during(ctx)
			}
			text := "found " + string(r.Params.Arguments) + " as " + auth
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}, IsError: strings.Contains(text, "Nowhere")}, nil
		})
		return s
	}, &sdk.StreamableHTTPOptions{Stateless: true})
	server := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(ln) }()
	t.Cleanup(func() { server.Close(); <-done })
	w.paths.Set(consultest.Allow("tickets", "agent-assistant"), consultest.Allow("indoors", "agent-assistant"), consultest.Allow("weather", "agent-assistant"))
	return u
}

// ticketCall is a good call of the tool and its capability.
func (w *world) ticketCall(claims func(*capability.Claims), change func(*brokerv1.InvokeRequest)) *brokerv1.InvokeRequest {
	return w.invocation(func(c *capability.Claims) {
		c.Tools, c.Destinations = []string{"mcp:tickets.search"}, []string{"tickets", "indoors", "weather"}
		if claims != nil {
			claims(c)
		}
	}, func(in *brokerv1.InvokeRequest) {
		in.Tool = &brokerv1.HttpTool{Ref: "mcp:tickets.search", Destination: "tickets", Credential: "weather-key",
			Mcp: &brokerv1.McpCall{Tool: "search", SchemaDigest: canonical.Digest([]byte(ticketSchema))}}
		if change != nil {
			change(in)
		}
	})
}

func (w *world) logOf(server peer, in *brokerv1.InvokeRequest) *brokerv1.LookupActionResponse {
	w.t.Helper()
	l, err := server.broker.LookupAction(w.t.Context(), &brokerv1.LookupActionRequest{ActionId: in.GetActionId()})
	w.must(err)
	return l
}

// A tool of an MCP server gets its credential on the way out, nothing of it comes
// back (INV-17), and the log knows what became of the call (INV-4).
func TestMCPCall(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u, server := startTickets(t, w), w.as(w.serverCert)
		in := w.ticketCall(nil, nil)
		r, err := invoke(t.Context(), server, in)
		if err != nil || r.GetHttpStatus() != 200 || r.GetFailed() || string(r.GetBody()) != `found {"city":"Bern"} as Bearer [redacted]` {
			t.Fatalf("%v %v", r, err)
		}
		if l := w.logOf(server, in); l.GetState() != brokerv1.CallState_CALL_STATE_ANSWERED || l.GetBodyDigest() != r.GetBodyDigest() || l.GetFailed() {
			t.Errorf("%v", l)
		}
		nowhere := `{"city":"Nowhere"}`
		in = w.ticketCall(func(c *capability.Claims) { c.ArgsDigest = canonical.Digest([]byte(nowhere)) }, func(in *brokerv1.InvokeRequest) { in.Arguments = nowhere })
		if r, err = invoke(t.Context(), server, in); err != nil || !r.GetFailed() {
			t.Errorf("%v %v", r, err)
		}
		if l := w.logOf(server, in); !l.GetFailed() || l.GetState() != brokerv1.CallState_CALL_STATE_ANSWERED {
			t.Errorf("%v", l)
		}
		// INV-5: what was answered is not called again, except where the definition says
		// that the same twice does what once does.
		if _, err := invoke(t.Context(), server, in); protocol.CodeOf(err) != protocol.CodeAlreadyExists || u.called() != 2 {
			t.Errorf("%v, %d calls", err, u.called())
		}
		in = w.ticketCall(nil, func(in *brokerv1.InvokeRequest) { in.Tool.Mcp.Repeatable = true })
		for range 2 {
			if _, err := invoke(t.Context(), server, in); err != nil {
				t.Error(err)
			}
		}
		if u.called() != 4 {
			t.Errorf("%d calls", u.called())
		}
	})
}

// Every refusal calls nothing; the twin without the change is TestMCPCall and the
// last row.
func TestMCPRefuses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u, server := startTickets(t, w), w.as(w.serverCert)
		to := func(name string) func(*brokerv1.InvokeRequest) {
			return func(in *brokerv1.InvokeRequest) { in.Tool.Destination, in.Tool.Credential = name, "" }
		}
		for name, tc := range map[string]struct {
			claims func(*capability.Claims)
			change func(*brokerv1.InvokeRequest)
			want   protocol.Code
		}{
			"another tool":     {change: func(in *brokerv1.InvokeRequest) { in.Tool.Ref = "mcp:tickets.delete" }, want: protocol.CodePermissionDenied},
			"other arguments":  {change: func(in *brokerv1.InvokeRequest) { in.Arguments = `{"city":"Rom"}` }, want: protocol.CodePermissionDenied},
			"no path":          {claims: func(c *capability.Claims) { c.Agent = "coder" }, want: protocol.CodePolicyDenied},
			"boundary":         {claims: func(c *capability.Claims) { c.DataBoundary = "secret" }, want: protocol.CodePolicyDenied},
			"cap of tenant":    {claims: func(c *capability.Claims) { c.TenantName = "capped" }, want: protocol.CodePolicyDenied},
			"no grant":         {claims: func(c *capability.Claims) { c.Grant, c.SealedGrant = "", nil }, want: protocol.CodePermissionDenied},
			"not bound":        {change: func(in *brokerv1.InvokeRequest) { in.Tool.Credential = "provider-key" }, want: protocol.CodePolicyDenied},
			"private address":  {change: to("indoors"), want: protocol.CodePolicyDenied},
			"no MCP server":    {change: to("weather"), want: protocol.CodePolicyDenied},
			"an http tool":     {change: func(in *brokerv1.InvokeRequest) { in.Tool.Mcp, in.Tool.Method, in.Tool.Path = nil, "POST", "/" }, want: protocol.CodePolicyDenied},
			"pattern":          {change: func(in *brokerv1.InvokeRequest) { in.Tool.Mcp.Tool = "*" }, want: protocol.CodeInvalidArgument},
			"not pinned":       {change: func(in *brokerv1.InvokeRequest) { in.Tool.Mcp.SchemaDigest = "" }, want: protocol.CodeInvalidArgument},
			"schema changed":   {change: func(in *brokerv1.InvokeRequest) { in.Tool.Mcp.SchemaDigest = canonical.Digest([]byte("{}")) }, want: protocol.CodeFailedPrecondition},
			"no longer there":  {change: func(in *brokerv1.InvokeRequest) { in.Tool.Mcp.Tool = "find" }, want: protocol.CodeFailedPrecondition},
			"turn's time over": {claims: func(c *capability.Claims) { c.Deadline = time.Now().Add(-time.Second) }, want: protocol.CodeDeadlineExceeded},
		} {
			in := w.ticketCall(tc.claims, tc.change)
			_, err := invoke(t.Context(), server, in)
			if protocol.CodeOf(err) != tc.want || strings.Contains(err.Error(), toolKey) {
				t.Errorf("%s: %v, want %s", name, err, tc.want)
			}
			if l := w.logOf(server, in); l.GetState() != brokerv1.CallState_CALL_STATE_ABSENT {
				t.Errorf("%s: the log says %v", name, l)
			}
		}
		if u.called() != 0 {
			t.Errorf("%d calls", u.called())
		}
		// A path may be about one tool alone, and its end is the end of the handshake too.
		header := func(name, value string) consul.Permission {
			return consul.Permission{Allow: true, HTTP: consul.HTTP{PathExact: "/mcp", Methods: []string{"POST"}, Header: []consul.Header{{Name: name, Exact: value}}}}
		}
		handshake := []consul.Permission{header("Mcp-Method", "server/discover"), header("Mcp-Method", "tools/list")}
		for tool, want := range map[string]protocol.Code{"search": "", "find": protocol.CodePolicyDenied} {
			w.paths.Set(consul.Intention{Destination: "tickets", Sources: []consul.Source{{Name: "agent-assistant", Permissions: append(handshake, header("Mcp-Name", tool))}}})
			if _, err := invoke(t.Context(), server, w.ticketCall(nil, nil)); protocol.CodeOf(err) != want {
				t.Errorf("a path for %s: %v", tool, err)
			}
		}
		if u.called() != 1 {
			t.Errorf("%d calls", u.called())
		}
	})
}

// A credential that is set again goes out with the next call, and what it was before
// stays out of answers. INV-17.
func TestMCPRotation(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u, server := startTickets(t, w), w.as(w.serverCert)
		u.mu.Lock()
		u.says = "was " + toolKey + ", is "
		u.mu.Unlock()
		for _, set := range []string{"", newToolKey} {
			if set != "" {
				_, err := server.authority.PutCredential(t.Context(), &brokerv1.PutCredentialRequest{
					TenantId: w.tenant.String(), Name: "weather-key", Sealed: authoritytest.Seal(t, w.keys, "weather-key", set)})
				w.must(err)
			}
			r, err := invoke(t.Context(), server, w.ticketCall(nil, nil))
			if want := `found {"city":"Bern"} as was [redacted], is Bearer [redacted]`; err != nil || string(r.GetBody()) != want {
				t.Errorf("set %q: %q %v", set, r.GetBody(), err)
			}
		}
	})
}

// A revoked grant, a path that closes and a turn that ends cut an open call off
// within a second, as a model's stream; what it did is unknown. INV-5, INV-13.
func TestMCPFlowsClose(t *testing.T) {
	for name, end := range map[string]func(*world, peer, *brokerv1.InvokeRequest){
		"grant": func(w *world, p peer, _ *brokerv1.InvokeRequest) {
			_, err := p.authority.RevokeGrant(w.t.Context(), &brokerv1.RevokeGrantRequest{GrantId: w.grant.ID.String()})
			w.must(err)
		},
		"path": func(w *world, _ peer, _ *brokerv1.InvokeRequest) { w.paths.Set() },
		"floor": func(w *world, _ peer, _ *brokerv1.InvokeRequest) {
			w.feed.raise(brokerv1.FloorKind_FLOOR_KIND_PRINCIPAL, w.grant.Principal.String(), 1<<62)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				u, server := startTickets(t, w), w.as(w.serverCert)
				arrived, over := make(chan struct{}, 1), make(chan struct{})
				defer close(over)
				u.set(ticketSchema, func(context.Context) {
					arrived <- struct{}{}
					<-over
				})
				in := w.ticketCall(nil, nil)
				done := make(chan error, 1)
				go func() {
					_, err := invoke(context.Background(), server, in)
					done <- err
				}()
				<-arrived
				at := time.Now()
				end(w, server, in)
				err := <-done
				if took := time.Since(at); protocol.CodeOf(err) != protocol.CodeOutcomeUnknown || took > time.Second {
					t.Errorf("%v after %s", err, took)
				}
				if l := w.logOf(server, in); l.GetState() != brokerv1.CallState_CALL_STATE_SENT || !l.GetFinal() || u.called() != 1 {
					t.Errorf("%v, %d calls", l, u.called())
				}
			})
		})
	}
}

// An admin sees what a server offers; Reach says when it is not what was accepted.
func TestMCPOffers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		u, server := startTickets(t, w), w.as(w.serverCert)
		list := func(tenant, destination string) (*brokerv1.McpToolsResponse, error) {
			r, err := server.broker.McpTools(t.Context(), &brokerv1.McpToolsRequest{TenantId: w.tenant.String(), TenantName: tenant, Destination: destination})
			return r, protocol.FromConnect(err)
		}
		r, err := list("local", "tickets")
		if err != nil || len(r.GetTools()) != 1 || r.GetTools()[0].GetName() != "search" || r.GetTools()[0].GetInputSchema() != ticketSchema ||
			r.GetTools()[0].GetSchemaDigest() != canonical.Digest([]byte(ticketSchema)) || r.GetServerName() != "tickets" || strings.Join(r.GetCredentials(), "") != "weather-key" {
			t.Errorf("%v %v", r, err)
		}
		for destination, want := range map[string]protocol.Code{"nowhere": protocol.CodeNotFound, "weather": protocol.CodeFailedPrecondition, "indoors": protocol.CodePolicyDenied} {
			if _, err := list("local", destination); protocol.CodeOf(err) != want {
				t.Errorf("%s: %v", destination, err)
			}
		}
		if _, err := list("capped", "tickets"); protocol.CodeOf(err) != protocol.CodePolicyDenied {
			t.Errorf("a tenant that may not reach it: %v", err)
		}
		reach := func() *brokerv1.Reach {
			t.Helper()
			r, err := server.broker.Reach(t.Context(), &brokerv1.ReachRequest{TenantId: w.tenant.String(), TenantName: "local", Agent: "assistant", DataBoundary: "personal",
				Tools: []*brokerv1.HttpTool{w.ticketCall(nil, nil).GetTool()}})
			w.must(err)
			return r.GetTools()[0]
		}
		if got := reach(); !got.GetAdmitted() {
			t.Errorf("%v", got)
		}
		u.set(`{"type":"object"}`, nil)
		if got := reach(); got.GetAdmitted() || got.GetBy() != string(broker.ByOffer) || !strings.Contains(got.GetReason(), "schema changed") {
			t.Errorf("%v", got)
		}
		if u.called() != 0 {
			t.Errorf("%d calls", u.called())
		}
		d, err := server.broker.Describe(t.Context(), &brokerv1.DescribeRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Current()})
		w.must(err)
		for _, to := range d.GetDestinations() {
			if to.GetMcp() != (to.GetName() == "tickets" || to.GetName() == "indoors") {
				t.Errorf("%v", to)
			}
		}
	})
}
