package broker

import (
	"context"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/server/broker/calllog"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/ssh"
)

// runSSH runs a command on a host. The command is filled first, since its certificate is
// bound to it; signing in comes before the log, since it runs nothing. From the log's
// entry on only the log may say that nothing was run. INV-4, INV-5.
func (b *Broker) runSSH(ctx context.Context, id protocol.ActionID, r *request, in *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
	host, flow := b.destinations[r.destination()].ssh, ctx
	ready, err := host.Prepare(ssh.Call{Tool: r.tool, Arguments: []byte(r.arguments), IdempotencyKey: in.GetIdempotencyKey(), MaxBytes: int(in.GetMaxOutputBytes())})
	if err != nil {
		return nil, refusedBy(ByPolicy, err)
	}
	if err := b.leaves(ctx, r, ready.Wire()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(flow, ready.Timeout, protocol.Errorf(protocol.CodeDeadlineExceeded, "the tool's time of %s is over", ready.Timeout))
	defer cancel()
	r.command = ready.Line()
	credential, err := b.mint(ctx, r)
	if err != nil {
		return nil, refusedBy(ByAuthority, err)
	}
	defer credential.Return(flow)
	session, err := ready.Open(ctx, credential.Signer)
	if err != nil {
		return nil, notCalled(err)
	}
	defer session.Close()
	// Paths and authority may have changed while the host let it in.
	if err := b.leaves(ctx, r, ready.Wire()); err != nil {
		return nil, err
	}
	call := r.tool.GetSsh()
	first, err := b.calls.Begin(calllog.Call{Action: id, ArgsDigest: r.claims.ArgsDigest, Key: in.GetIdempotencyKey(), Repeatable: r.tool.GetRepeatable() || call.GetInspects()})
	if err != nil {
		return nil, err
	}
	fault.Here(fault.BrokerCallLogged)
	answer, err := session.Run(ctx, credential.Hidden()...)
	if err != nil {
		return nil, b.notAnswered(id, first, err)
	}
	return b.answered(id, answer), nil
}
