package sim

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/protocol/brokerv1"
)

// port is the engine's way to the broker: each call is a question of an op, and
// a request on the network.
type port struct {
	s *Sim
	h *host
}

// Timeouts of calls to the broker.
const (
	shortCall = 10 * time.Second
	longCall  = 60 * time.Second
)

// ask sends a request and waits, as an op, for its answer. Outside an op nothing
// can wait: the set-up of a run is answered at once.
func ask[T any](ctx context.Context, p *port, name string, timeout time.Duration, serve func(b *broker, answer func(T, error))) (T, error) {
	var none T
	s := p.s
	yield, inOp := ctx.Value(asking{}).(func(*question) bool)
	if !inOp {
		v, err := none, error(protocol.Errorf(protocol.CodeUnavailable, "the broker does not answer at once"))
		if s.broker.up && p.h.toBroker.up() {
			serve(s.broker, func(got T, e error) { v, err = got, e })
		}
		return v, err
	}
	q := &question{ask: func(answer func(any, error)) {
		rpc(call{over: p.h.toBroker, from: &p.h.party, to: &s.broker.party, name: name, timeout: timeout, once: true},
			func(reply func(T, error)) { serve(s.broker, reply) },
			func(v T, err error) { answer(v, err) })
	}}
	if !yield(q) || ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	if q.err != nil {
		return none, q.err
	}
	return q.value.(T), nil
}

func (p *port) Describe(ctx context.Context) (*brokerv1.DescribeResponse, error) {
	return ask(ctx, p, "describe", shortCall, func(b *broker, answer func(*brokerv1.DescribeResponse, error)) { b.describe(answer) })
}

func (p *port) CallModel(ctx context.Context, req *brokerv1.CallModelRequest, _ func(string)) (*runtimev1.ModelDone, error) {
	req = proto.CloneOf(req)
	return ask(ctx, p, "model "+req.CallId, longCall, func(b *broker, answer func(*runtimev1.ModelDone, error)) {
		b.callModel(p.h.thumb, req, answer)
	})
}

func (p *port) Invoke(ctx context.Context, req *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
	req = proto.CloneOf(req)
	return ask(ctx, p, "invoke "+req.ActionId, longCall, func(b *broker, answer func(*brokerv1.InvokeResponse, error)) {
		b.invoke(p.h.thumb, req, answer)
	})
}

func (p *port) LookupAction(ctx context.Context, id protocol.ActionID) (*brokerv1.LookupActionResponse, error) {
	return ask(ctx, p, "lookup "+id.String(), shortCall, func(b *broker, answer func(*brokerv1.LookupActionResponse, error)) {
		b.lookup(id, answer)
	})
}

func (p *port) Usage(ctx context.Context, ids ...protocol.SliceID) (*brokerv1.UsageResponse, error) {
	return ask(ctx, p, "usage", shortCall, func(b *broker, answer func(*brokerv1.UsageResponse, error)) {
		b.usage(b.ledger.Usage(ids...), answer)
	})
}

func (p *port) CloseSlices(ctx context.Context, ids ...protocol.SliceID) (*brokerv1.UsageResponse, error) {
	return ask(ctx, p, "close slices", shortCall, func(b *broker, answer func(*brokerv1.UsageResponse, error)) {
		b.usage(b.ledger.Close(ids...), answer)
	})
}

func (p *port) Probe(ctx context.Context, capability string, _ protocol.GrantID) (*brokerv1.ProbeResponse, error) {
	return ask(ctx, p, "probe", shortCall, func(b *broker, answer func(*brokerv1.ProbeResponse, error)) {
		_, err := b.admit(p.h.thumb, capability)
		answer(&brokerv1.ProbeResponse{Admitted: err == nil, Code: string(protocol.CodeOf(err))}, nil)
	})
}

// Reach is asked by people, of whom the simulation has none who wonder.
func (p *port) Reach(context.Context, *brokerv1.ReachRequest) (*brokerv1.ReachResponse, error) {
	return nil, protocol.Errorf(protocol.CodeUnavailable, "this broker explains nothing")
}

func (p *port) CreateGrant(ctx context.Context, in *brokerv1.CreateGrantRequest) ([]byte, error) {
	return ask(ctx, p, "create grant", shortCall, func(b *broker, answer func([]byte, error)) {
		b.grants[protocol.GrantID(in.GrantId)] = true
		answer([]byte("sealed "+in.GrantId), nil)
	})
}

func (p *port) RevokeGrant(ctx context.Context, id protocol.GrantID) (*brokerv1.RevokeGrantResponse, error) {
	return ask(ctx, p, "revoke grant", shortCall, func(b *broker, answer func(*brokerv1.RevokeGrantResponse, error)) {
		b.grants[id] = false
		answer(&brokerv1.RevokeGrantResponse{RevokedUs: time.Now().UnixMicro(), FlowsZeroUs: time.Now().UnixMicro()}, nil)
	})
}

func (p *port) RotateGrant(ctx context.Context, id protocol.GrantID, rotation string) ([]byte, error) {
	return ask(ctx, p, "rotate grant", shortCall, func(b *broker, answer func([]byte, error)) {
		if !b.grants[id] {
			answer(nil, protocol.Errorf(protocol.CodeConflict, "grant %s was revoked", id))
			return
		}
		answer([]byte("sealed "+id.String()+" "+rotation), nil)
	})
}

func (p *port) SettleRotation(ctx context.Context, id protocol.GrantID, _ string) error {
	_, err := ask(ctx, p, "settle rotation", shortCall, func(b *broker, answer func(bool, error)) {
		if !b.grants[id] {
			answer(false, protocol.Errorf(protocol.CodeConflict, "grant %s was revoked", id))
			return
		}
		answer(true, nil)
	})
	return err
}

func (p *port) LastHead(ctx context.Context, t protocol.TenantID) (*brokerv1.LastHeadResponse, error) {
	return ask(ctx, p, "last head", shortCall, func(b *broker, answer func(*brokerv1.LastHeadResponse, error)) { answer(b.lastHead(t), nil) })
}

// SignHead refuses a head that does not follow, as a broker does. INV-8.
func (p *port) SignHead(ctx context.Context, req *brokerv1.SignHeadRequest) (string, error) {
	return ask(ctx, p, "sign head", shortCall, func(b *broker, answer func(string, error)) { answer("receipt", b.signHead(req)) })
}

func (p *port) SignReceipt(ctx context.Context, receipt []byte) (string, error) {
	return ask(ctx, p, "sign receipt", shortCall, func(_ *broker, answer func(string, error)) { answer("receipt", nil) })
}
