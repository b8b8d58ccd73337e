package broker

import (
	"context"
	"slices"
	"strings"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/budget"
	"bivouac/server/broker/protocol/brokerv1"
)

// brokerService is what servers and relays ask.
type brokerService struct{ *Broker }

// Describe says who this broker is and what it can reach. No secret is in it.
func (s brokerService) Describe(_ context.Context, in *brokerv1.DescribeRequest) (*brokerv1.DescribeResponse, error) {
	if _, err := protocol.Agree(in.GetOldestCapabilityVersion(), in.GetCapabilityVersion()); err != nil {
		return nil, err
	}
	recipient, statement := s.ports.Authority.Recipient()
	out := &brokerv1.DescribeResponse{
		BrokerId: s.ports.Root.BrokerID(), Pool: s.cfg.Pool, BootNonce: s.boot, CapabilityVersion: protocol.Current(),
		SealRecipient: recipient, SealStatement: statement, RootCertificate: s.ports.Root.Root().Raw, FeedAgeMs: -1,
	}
	if files, ok := s.ports.Paths.(interface{ Location() string }); ok {
		out.PathsDirectory = files.Location()
	}
	if held, ok := s.ports.Authority.(interface{ Restored() (asOf, at time.Time) }); ok {
		if asOf, at := held.Restored(); !at.IsZero() {
			out.GrantsAsOfUs, out.GrantsRestoredUs = asOf.UnixMicro(), at.UnixMicro()
		}
	}
	if age := s.feed.Age(); age >= 0 {
		out.FeedAgeMs = age.Milliseconds()
	}
	for _, r := range s.routes {
		out.Models = append(out.Models, r.describe())
	}
	for _, d := range s.destinations {
		to := &brokerv1.Destination{Name: d.Name(), Url: d.URL(), Credentials: d.Credentials(), Egress: d.bounds.Protocol, Mcp: d.mcp != nil}
		if d.ssh != nil {
			to.Commands = d.ssh.Commands()
		}
		out.Destinations = append(out.Destinations, to)
	}
	slices.SortFunc(out.Models, func(a, b *brokerv1.ModelRoute) int { return strings.Compare(a.GetName(), b.GetName()) })
	slices.SortFunc(out.Destinations, func(a, b *brokerv1.Destination) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, nil
}

// Usage reads budget slices, and with close ends them.
func (s brokerService) Usage(_ context.Context, in *brokerv1.UsageRequest) (*brokerv1.UsageResponse, error) {
	var ids []protocol.SliceID
	for _, text := range in.GetSliceIds() {
		id, err := protocol.ParseID[protocol.SliceKind](text)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	var usages []budget.Usage
	if in.GetClose() {
		usages = s.ledger.Close(ids...)
	} else {
		usages = s.ledger.Usage(ids...)
	}
	out := &brokerv1.UsageResponse{BootNonce: s.boot, KnownBoots: s.ledger.Boots()}
	for _, u := range usages {
		out.Slices = append(out.Slices, &brokerv1.SliceUsage{
			SliceId: u.Slice.String(), DrawnMicroUsd: u.Drawn, ReservedMicroUsd: u.Reserved, LargestMicroUsd: u.Largest,
			InputTokens: u.Input, OutputTokens: u.Output, OpenFlows: int32(u.Open), Calls: u.Calls,
		})
	}
	return out, nil
}

// Probe presents a capability as a request would, on behalf of its presenter,
// and counts what still runs under the grant. It admits nothing.
func (s brokerService) Probe(ctx context.Context, in *brokerv1.ProbeRequest) (*brokerv1.ProbeResponse, error) {
	out := &brokerv1.ProbeResponse{}
	grant, err := protocol.ParseID[protocol.GrantKind](in.GetGrantId())
	if err != nil && in.GetGrantId() != "" {
		return nil, err
	}
	if grant != "" {
		n, last, _ := s.flows.count(func(r *request) bool { return r.claims.Grant == grant }, grant)
		out.OpenFlows = int32(n)
		if !last.IsZero() {
			out.LastAdmittedUs = last.UnixMicro()
		}
	}
	if in.GetCapability() == "" {
		return out, nil
	}
	if err := s.probe(ctx, in.GetCapability()); err != nil {
		out.Code = string(protocol.CodeOf(err))
		return out, nil
	}
	out.Admitted = true
	return out, nil
}

// probe runs every check that the capability alone decides.
func (b *Broker) probe(ctx context.Context, token string) error {
	if err := b.checkFeed(ctx, nil); err != nil {
		return err
	}
	presenter, err := claimedPresenter(token)
	if err != nil {
		return err
	}
	r := &request{token: token, peer: peerOf(ctx)}
	r.peer.Thumbprint = presenter
	for _, ask := range []func(context.Context, *request) error{b.checkCapability, b.checkDeadline, b.checkFloors, b.checkGrant, b.checkCaps} {
		if err := ask(ctx, r); err != nil {
			return err
		}
	}
	return nil
}
