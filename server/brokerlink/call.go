package brokerlink

import (
	"context"
	"errors"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// Bounds of calls whose caller set none.
const (
	quickCall = 10 * time.Second
	slowCall  = 60 * time.Second
)

// ask runs one call with a bound and turns its error into ours.
func ask[Service, Req, Res any](ctx context.Context, l *Link, limit time.Duration, of func(*peers) Service,
	method func(Service, context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	p, err := l.services()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	res, err := method(of(p), ctx, req)
	if err != nil {
		return nil, coded(err)
	}
	return res, nil
}

// coded keeps what the link said of the peer, and otherwise what came over the wire.
func coded(err error) error {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e
	}
	return protocol.FromConnect(err)
}

// Describe asks who the broker is and how old its feed is.
func (l *Link) Describe(ctx context.Context) (*brokerv1.DescribeResponse, error) {
	return ask(ctx, l, quickCall, (*peers).brokerService, brokerv1connect.BrokerServiceClient.Describe,
		&brokerv1.DescribeRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest()})
}

// Diagnose asks what the broker stands on, as it sees it.
func (l *Link) Diagnose(ctx context.Context) (*brokerv1.DiagnoseResponse, error) {
	return ask(ctx, l, quickCall, (*peers).brokerService, brokerv1connect.BrokerServiceClient.Diagnose, &brokerv1.DiagnoseRequest{})
}

// CallModel streams text to onDelta as it comes and returns the whole answer.
func (l *Link) CallModel(ctx context.Context, req *brokerv1.CallModelRequest, onDelta func(string)) (*runtimev1.ModelDone, error) {
	p, err := l.services()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.broker.CallModel(ctx, req)
	if err != nil {
		return nil, coded(err)
	}
	defer stream.Close() // ended with ctx
	var done *runtimev1.ModelDone
	for stream.Receive() {
		event := stream.Msg().GetEvent()
		if text := event.GetTextDelta(); text != "" && onDelta != nil {
			onDelta(text)
		}
		if d := event.GetDone(); d != nil {
			done = d
		}
	}
	switch err := stream.Err(); {
	case err != nil:
		return nil, coded(err)
	case done == nil:
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the broker's model stream ended before the answer was whole")
	}
	return done, nil
}

// Invoke calls one http tool.
func (l *Link) Invoke(ctx context.Context, req *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
	limit := slowCall
	if ms := req.GetTool().GetTimeoutMs(); ms > 0 {
		limit = time.Duration(ms)*time.Millisecond + quickCall
	}
	return ask(ctx, l, limit, (*peers).brokerService, brokerv1connect.BrokerServiceClient.Invoke,
		req)
}

// LookupAction asks the call log.
func (l *Link) LookupAction(ctx context.Context, id protocol.ActionID) (*brokerv1.LookupActionResponse, error) {
	return ask(ctx, l, quickCall, (*peers).brokerService, brokerv1connect.BrokerServiceClient.LookupAction,
		&brokerv1.LookupActionRequest{ActionId: id.String()})
}

// Usage reads budget slices.
func (l *Link) Usage(ctx context.Context, ids ...protocol.SliceID) (*brokerv1.UsageResponse, error) {
	return l.usage(ctx, &brokerv1.UsageRequest{}, ids)
}

// CloseSlices reads budget slices and ends them.
func (l *Link) CloseSlices(ctx context.Context, ids ...protocol.SliceID) (*brokerv1.UsageResponse, error) {
	return l.usage(ctx, &brokerv1.UsageRequest{Close: true}, ids)
}

func (l *Link) usage(ctx context.Context, req *brokerv1.UsageRequest, ids []protocol.SliceID) (*brokerv1.UsageResponse, error) {
	for _, id := range ids {
		req.SliceIds = append(req.SliceIds, id.String())
	}
	return ask(ctx, l, quickCall, (*peers).brokerService, brokerv1connect.BrokerServiceClient.Usage,
		req)
}

// Reach says what an agent could reach now.
func (l *Link) Reach(ctx context.Context, req *brokerv1.ReachRequest) (*brokerv1.ReachResponse, error) {
	return ask(ctx, l, quickCall, (*peers).brokerService, brokerv1connect.BrokerServiceClient.Reach, req)
}

// McpTools says what an MCP server of the broker's file offers now.
func (l *Link) McpTools(ctx context.Context, req *brokerv1.McpToolsRequest) (*brokerv1.McpToolsResponse, error) {
	return ask(ctx, l, quickCall, (*peers).brokerService, brokerv1connect.BrokerServiceClient.McpTools, req)
}

// Probe presents a capability as a request would.
func (l *Link) Probe(ctx context.Context, capability string, grant protocol.GrantID) (*brokerv1.ProbeResponse, error) {
	return ask(ctx, l, quickCall, (*peers).brokerService, brokerv1connect.BrokerServiceClient.Probe,
		&brokerv1.ProbeRequest{Capability: capability, GrantId: grant.String()})
}
