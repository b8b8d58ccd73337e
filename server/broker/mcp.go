package broker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"bivouac/consul"
	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/server/broker/calllog"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/mcp"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
)

// callMCP calls a tool of an MCP server. Handshake and list come before the log:
// they call nothing. From the log's entry on only the log may say that nothing left.
// INV-4, INV-5.
func (b *Broker) callMCP(ctx context.Context, id protocol.ActionID, r *request, in *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
	server, pin := b.destinations[r.destination()].mcp, r.tool.GetMcp()
	timeout, flow := server.Timeout(r.tool), ctx
	ctx, cancel := context.WithTimeoutCause(flow, timeout, protocol.Errorf(protocol.CodeDeadlineExceeded, "the tool's time of %s is over", timeout))
	defer cancel()
	credential, err := b.mint(ctx, r)
	if err != nil {
		return nil, refusedBy(ByAuthority, err)
	}
	defer credential.Return(flow)
	access := b.accessOf(ctx, r, credential)
	session, err := server.Open(ctx, access)
	if err != nil {
		return nil, notCalled(err)
	}
	defer session.Close(flow) // a call that took too long is ended at the server too
	call := mcp.Call{Tool: pin.GetTool(), Digest: pin.GetSchemaDigest(), Arguments: []byte(r.arguments), Reads: pin.GetReads(), MaxBytes: int(in.GetMaxOutputBytes())}
	if err := session.Check(call); err != nil {
		return nil, notCalled(err)
	}
	first, err := b.calls.Begin(calllog.Call{Action: id, ArgsDigest: r.claims.ArgsDigest, Key: in.GetIdempotencyKey(), Repeatable: pin.GetRepeatable()})
	if err != nil {
		return nil, err
	}
	fault.Here(fault.BrokerCallLogged)
	answer, err := session.Call(ctx, call)
	if err != nil {
		return nil, b.notAnswered(id, first, err)
	}
	b.refusedToken(r.claims.Tenant, access.Name, credential.Value, answer.Status)
	return b.answered(id, answer), nil
}

// accessOf one session: its credential, and the paths that every request of it is
// held against.
func (b *Broker) accessOf(ctx context.Context, r *request, credential issued.Credential) mcp.Access {
	a := mcp.Access{Name: r.tool.GetCredential(), Credential: credential.Value}
	if a.Name != "" {
		a.Before = append(b.retired.use(r.claims.Tenant, a.Name, credential.Value), credential.Hidden()...)
	}
	a.RenewFunc = b.renewal(r, credential.Value)
	a.LeavesFunc = func(w *consul.Request) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return b.leaves(ctx, r, w)
	}
	// What could be left out is asked about without becoming what the flow stands on.
	a.MayFunc = func(w *consul.Request) error {
		if err := b.checkPathOf(r, w, false); err != nil {
			return protocol.Errorf(protocol.CodeOf(err), "%s %s: %w", w.Method, w.Path, err)
		}
		return nil
	}
	return a
}

// notCalled is what went wrong before a tool was called.
func notCalled(err error) error {
	var never *gateway.NotSent
	if errors.As(err, &never) {
		return never.Err
	}
	return err
}

// listTimeout bounds a look at what a server offers.
const listTimeout = 8 * time.Second

// McpTools says what an MCP server offers now, for a person who pins it. It calls
// nothing, and uses no credential but the one that the operator bound for it.
func (s brokerService) McpTools(ctx context.Context, in *brokerv1.McpToolsRequest) (*brokerv1.McpToolsResponse, error) {
	tenant, err := protocol.ParseID[protocol.TenantKind](in.GetTenantId())
	if err != nil {
		return nil, err
	}
	r := &request{tool: &brokerv1.HttpTool{Destination: in.GetDestination()}}
	r.claims.Tenant, r.claims.TenantName = tenant, in.GetTenantName()
	if err := s.checkCaps(ctx, r); err != nil {
		return nil, refusedBy(ByCap, err)
	}
	if _, err := s.pathDestination(r); err != nil {
		return nil, err
	}
	server := s.destinations[in.GetDestination()].mcp
	if server == nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "destination %s is no MCP server: it needs an mcp block in broker.hcl", in.GetDestination())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, protocol.Errorf(protocol.CodeDeadlineExceeded, "the MCP server of destination %s did not say within %s what it offers", in.GetDestination(), listTimeout))
	defer cancel()
	session, err := s.look(ctx, tenant, server)
	if err != nil {
		return nil, notCalled(err)
	}
	defer session.Close(ctx)
	out := &brokerv1.McpToolsResponse{Destination: in.GetDestination(), Credentials: server.Credentials()}
	out.ServerName, out.ServerVersion, out.ProtocolVersion = session.About()
	for _, o := range session.Offers() {
		out.Tools = append(out.Tools, &brokerv1.McpTool{Name: o.Name, Description: o.Description, InputSchema: o.Schema, SchemaDigest: o.Digest, Hints: o.Hints, Problem: o.Problem})
	}
	slices.SortStableFunc(out.Tools, func(a, b *brokerv1.McpTool) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, nil
}

// look opens a session that lists, with the operator's credential.
func (b *Broker) look(ctx context.Context, tenant protocol.TenantID, server *mcp.Endpoint) (*mcp.Session, error) {
	a := mcp.Access{Name: server.Credential()}
	if a.Name != "" {
		var err error
		if a.Credential, a.Before, err = b.routeValue(ctx, tenant, a.Name); err != nil {
			return nil, err
		}
		if refused := a.Credential; b.tokens.Makes(a.Name) {
			a.RenewFunc = func(ctx context.Context) (secret.Value, []secret.Value, error) {
				b.tokens.Refused(tenant, a.Name, refused)
				return b.routeValue(ctx, tenant, a.Name)
			}
		}
	}
	return server.Open(ctx, a)
}
