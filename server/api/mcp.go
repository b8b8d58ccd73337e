package api

import (
	"context"

	"bivouac/server/api/apiv1"
	"bivouac/server/broker/protocol/brokerv1"
)

// McpTools relays what an MCP server offers to the admin who pins it. The server
// keeps nothing of it: what counts is what a definition says.
func (s agents) McpTools(ctx context.Context, r *apiv1.McpToolsRequest) (*apiv1.McpToolsResponse, error) {
	if err := requireAdmin(ctx, "list the tools of MCP servers"); err != nil {
		return nil, err
	}
	tenant := loginOf(ctx).tenant
	found, err := s.Broker.McpTools(ctx, &brokerv1.McpToolsRequest{TenantId: tenant.ID.String(), TenantName: tenant.Name, Destination: r.GetDestination()})
	if err != nil {
		return nil, err
	}
	out := &apiv1.McpToolsResponse{
		Destination: r.GetDestination(), ServerName: found.GetServerName(), ServerVersion: found.GetServerVersion(),
		ProtocolVersion: found.GetProtocolVersion(), Credentials: found.GetCredentials(),
	}
	for _, t := range found.GetTools() {
		out.Tools = append(out.Tools, &apiv1.McpTool{
			Name: t.GetName(), Description: t.GetDescription(), InputSchema: t.GetInputSchema(), SchemaDigest: t.GetSchemaDigest(),
			Hints: t.GetHints(), Problem: t.GetProblem(),
		})
	}
	return out, nil
}
