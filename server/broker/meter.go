package broker

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// Meter is told how requests under a capability end, by whoever watches a
// deployment. It must not wait, and is never told what was in a request.
type Meter interface {
	// Ended: a model call, an http tool's call or a package request ended. by names what refused it,
	// empty where nothing did; code is empty for success.
	Ended(kind string, by Refusal, code protocol.Code)
}

// Kinds of requests.
const (
	KindModel = "model"
	KindTool  = "tool"
	// KindEgress is a package request of sandboxed code.
	KindEgress = "egress"
)

// kinds of the procedures that are metered.
var kinds = map[string]string{
	brokerv1connect.BrokerServiceCallModelProcedure: KindModel,
	brokerv1connect.BrokerServiceInvokeProcedure:    KindTool,
}

// metered tells the meter how calls end, before their errors are translated.
type metered struct{ meter Meter }

func (m metered) ended(procedure string, err error) {
	kind := kinds[procedure]
	if kind != "" {
		m.count(kind, err)
	}
}

func (m metered) count(kind string, err error) {
	if m.meter == nil {
		return
	}
	var r *refusalError
	var by Refusal
	if errors.As(err, &r) {
		by = r.by
	}
	m.meter.Ended(kind, by, protocol.CodeOf(err))
}

func (m metered) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		m.ended(req.Spec().Procedure, err)
		return res, err
	}
}

func (metered) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (m metered) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		err := next(ctx, conn)
		m.ended(conn.Spec().Procedure, err)
		return err
	}
}

// FeedAge is how old the newest reading of the server's feed is; negative: there
// was none.
func (b *Broker) FeedAge() time.Duration { return b.feed.Age() }

// OpenFlows counts the requests that are under way.
func (b *Broker) OpenFlows() int {
	b.flows.mu.Lock()
	defer b.flows.mu.Unlock()
	return len(b.flows.open)
}
