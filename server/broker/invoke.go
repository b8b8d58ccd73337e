package broker

import (
	"context"
	"errors"

	"bivouac/consul"
	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/calllog"
	"bivouac/server/broker/gateway"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
)

// Invoke sends one gateway tool: an http request, a call at an MCP server, or a command
// on a host. The order is fixed: checked, prepared, credential minted, logged durably, sent,
// answered. INV-4.
func (s brokerService) Invoke(ctx context.Context, in *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
	b := s.Broker
	tool := in.GetTool()
	if tool == nil {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the request names no tool")
	}
	action, err := protocol.ParseID[protocol.ActionKind](in.GetActionId())
	if err != nil {
		return nil, err
	}
	req := &request{peer: peerOf(ctx), token: in.GetCapability(), tool: tool, action: action.String(), arguments: in.GetArguments()}
	ctx, fl := b.flows.begin(ctx, req)
	defer b.flows.end(fl)
	err = b.admit(ctx, fl)
	annotate(ctx, req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := b.untilDeadline(ctx, req)
	defer cancel()
	out := b.destinations[tool.GetDestination()]
	if err := out.admits(tool); err != nil {
		return nil, refusedBy(ByPolicy, err)
	}
	switch {
	case out.mcp != nil:
		return b.callMCP(ctx, action, req, in)
	case out.ssh != nil:
		return b.runSSH(ctx, action, req, in)
	}
	ready, err := out.Prepare(gateway.Call{
		Tool: tool, Arguments: []byte(in.GetArguments()), IdempotencyKey: in.GetIdempotencyKey(), MaxBytes: int(in.GetMaxOutputBytes()),
	})
	if err != nil {
		return nil, refusedBy(ByPolicy, err)
	}
	if err := b.leaves(ctx, req, ready.Wire()); err != nil {
		return nil, err
	}
	credential, err := b.mint(ctx, req)
	if err != nil {
		return nil, refusedBy(ByAuthority, err)
	}
	defer credential.Return(ctx)
	return b.send(ctx, action, req, ready, in.GetIdempotencyKey(), credential)
}

// mint opens the sealed grant for the one credential that the tool names: what is
// stored under the name, or what its engine issues now.
func (b *Broker) mint(ctx context.Context, r *request) (issued.Credential, error) {
	name := r.tool.GetCredential()
	if name == "" {
		return issued.Credential{}, nil
	}
	c := r.claims
	if c.Grant == "" || len(c.SealedGrant) == 0 {
		return issued.Credential{}, denied("the credential %q needs a grant, and the turn has none: bivouac grant create --agent %s --credential %s", name, c.Agent, name)
	}
	use := authority.Use{
		Grant: c.Grant, Sealed: c.SealedGrant, Tenant: c.Tenant, TenantName: c.TenantName, Principal: c.Principal, Agent: c.Agent, Credential: name,
		Session: c.Session, Action: c.Action, Command: r.command,
	}
	if from := b.destinations[r.destination()].issued[name]; from != nil {
		return b.issuer.Issue(ctx, use, from)
	}
	value, err := b.ports.Authority.Mint(ctx, use)
	if err == nil {
		value, err = b.sendable(ctx, c.Tenant, name, value)
	}
	return issued.Stored(value), err
}

func (b *Broker) send(ctx context.Context, id protocol.ActionID, r *request, ready *gateway.Request, key string, credential issued.Credential) (*brokerv1.InvokeResponse, error) {
	first, err := b.calls.Begin(calllog.Call{Action: id, ArgsDigest: r.claims.ArgsDigest, Key: key, Repeatable: ready.Repeatable})
	if err != nil {
		return nil, err
	}
	fault.Here(fault.BrokerCallLogged)
	// From here on only the log may say that nothing left.
	var before []secret.Value
	if name := r.tool.GetCredential(); name != "" {
		before = b.retired.use(r.claims.Tenant, name, credential.Value)
	}
	carrier, done, err := b.destinations[r.destination()].carrier(r.tool.GetCredential(), credential)
	if err != nil {
		return nil, b.notAnswered(id, first, &gateway.NotSent{Err: err})
	}
	defer done()
	answer, err := ready.Send(ctx, gateway.Pass{
		Credential: b.destinations[r.destination()].bound(r.tool.GetCredential(), credential), Before: append(before, credential.Hidden()...), Carrier: carrier,
		LeavesFunc: func(w *consul.Request) error { return b.leaves(ctx, r, w) },
		RenewFunc:  b.renewal(r, credential.Value),
	})
	if err != nil {
		return nil, b.notAnswered(id, first, err)
	}
	b.refusedToken(r.claims.Tenant, r.tool.GetCredential(), credential.Value, answer.Status)
	return b.answered(id, answer), nil
}

// answered logs what came back and makes it the response.
func (b *Broker) answered(id protocol.ActionID, a *gateway.Answer) *brokerv1.InvokeResponse {
	fault.Here(fault.BrokerCallAnswered)
	if err := b.calls.Answer(id, calllog.Outcome{Status: a.Status, BodyDigest: a.Digest, Failed: a.Failed}); err != nil {
		b.log.Error("an answer was not logged", "action", id, "error", err)
	}
	return &brokerv1.InvokeResponse{
		HttpStatus: int32(a.Status), ContentType: a.ContentType, Body: a.Body,
		Truncated: a.Truncated, BodyBytes: a.Bytes, BodyDigest: a.Digest, Failed: a.Failed, Unread: a.Unread, ExitStatus: a.Exit,
	}
}

// notAnswered takes the log's entry back only when it is certain that nothing
// left, now and before. INV-5.
func (b *Broker) notAnswered(id protocol.ActionID, first bool, err error) error {
	var never *gateway.NotSent
	if !errors.As(err, &never) {
		return err
	}
	if !first {
		return protocol.Errorf(protocol.CodeOutcomeUnknown, "action %s was sent before and could not be repeated: %w", id, never.Err)
	}
	if e := b.calls.Unsent(id); e != nil {
		return e
	}
	return never.Err
}

// LookupAction is the evidence of the call log after a crash.
func (s brokerService) LookupAction(_ context.Context, in *brokerv1.LookupActionRequest) (*brokerv1.LookupActionResponse, error) {
	id, err := protocol.ParseID[protocol.ActionKind](in.GetActionId())
	if err != nil {
		return nil, err
	}
	e, err := s.calls.Lookup(id)
	if err != nil {
		return nil, err
	}
	final := e.State == calllog.Sent && !s.flows.carries(id.String())
	if final { // the answer may have come between the two looks
		if e, err = s.calls.Lookup(id); err != nil {
			return nil, err
		}
		final = e.State == calllog.Sent
	}
	return &brokerv1.LookupActionResponse{
		State: callStates[e.State], HttpStatus: int32(e.Status), BodyDigest: e.BodyDigest, LogSinceUs: s.calls.Since().UnixMicro(), Final: final, Failed: e.Failed,
	}, nil
}

var callStates = map[calllog.State]brokerv1.CallState{
	calllog.Barred: brokerv1.CallState_CALL_STATE_ABSENT, calllog.Sent: brokerv1.CallState_CALL_STATE_SENT, calllog.Answered: brokerv1.CallState_CALL_STATE_ANSWERED,
}
