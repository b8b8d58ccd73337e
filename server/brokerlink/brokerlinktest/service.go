package brokerlinktest

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

type trustService struct{ *Broker }

func (b trustService) ttl() time.Duration {
	if b.CertTTL == 0 {
		return 24 * time.Hour
	}
	return b.CertTTL
}

func (b trustService) EnrollServer(ctx context.Context, r *brokerv1.EnrollServerRequest) (*brokerv1.EnrollServerResponse, error) {
	peer, err := link.PeerFrom(ctx)
	if err != nil {
		return nil, protocol.ToConnect(err)
	}
	code, err := identity.ParseCode(identity.CodeServer, r.GetCode())
	if err != nil {
		return nil, protocol.ToConnect(err)
	}
	b.mu.Lock()
	used, known := b.codes[string(code.Hash())]
	if known && used == "" {
		b.codes[string(code.Hash())] = peer.Thumbprint
		b.servers++
	}
	b.mu.Unlock()
	if !known || (used != "" && used != peer.Thumbprint) {
		return nil, protocol.ToConnect(protocol.Errorf(protocol.CodePermissionDenied, "the code was used by another server, has ended, or never was"))
	}
	chain, err := b.Root.Certify(peer.PublicKey, identity.RoleServer, "srv_test", "", b.ttl())
	return &brokerv1.EnrollServerResponse{ServerId: "srv_test", CertificateChain: chain, RootCertificate: b.Root.PEM()}, err
}

func (b trustService) RenewServer(ctx context.Context, _ *brokerv1.RenewServerRequest) (*brokerv1.RenewServerResponse, error) {
	peer, err := link.PeerFrom(ctx)
	if err != nil {
		return nil, protocol.ToConnect(err)
	}
	b.mu.Lock()
	enrolled := slices.Contains(slices.Collect(maps.Values(b.codes)), peer.Thumbprint)
	b.renewals++
	b.mu.Unlock()
	if !enrolled {
		return nil, protocol.ToConnect(protocol.Errorf(protocol.CodePermissionDenied, "this key was never enrolled"))
	}
	chain, err := b.Root.Certify(peer.PublicKey, identity.RoleServer, "srv_test", "", b.ttl())
	return &brokerv1.RenewServerResponse{CertificateChain: chain}, err
}

func (b trustService) CertifySigningKey(ctx context.Context, r *brokerv1.CertifySigningKeyRequest) (*brokerv1.CertifySigningKeyResponse, error) {
	peer, err := onlyServers(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	end := now.Add(capability.KeyTTL).Truncate(time.Second)
	jws, err := capability.Certify(b.Root.Key, peer.ID, r.GetPublicKey(), now.Add(-time.Minute), end)
	return &brokerv1.CertifySigningKeyResponse{
		Statement: jws, KeyId: capability.KeyID(ed25519.PublicKey(r.GetPublicKey())), NotAfterUs: end.UnixMicro(),
	}, err
}

func (b trustService) CertifyRunner(ctx context.Context, r *brokerv1.CertifyRunnerRequest) (*brokerv1.CertifyRunnerResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	if _, refused := b.refusals(); refused != nil {
		return nil, protocol.ToConnect(refused)
	}
	chain, err := b.Root.Certify(r.GetPublicKey(), identity.RoleRunner, r.GetRunnerId(), protocol.TenantID(r.GetTenantId()), b.ttl())
	return &brokerv1.CertifyRunnerResponse{
		CertificateChain: chain, RootCertificate: b.Root.PEM(), NotAfterUs: time.Now().Add(b.ttl()).UnixMicro(),
	}, err
}

// LastHead was never signed here.
func (b trustService) LastHead(ctx context.Context, _ *brokerv1.LastHeadRequest) (*brokerv1.LastHeadResponse, error) {
	_, err := onlyServers(ctx)
	return &brokerv1.LastHeadResponse{}, err
}

func (b trustService) SignHead(ctx context.Context, r *brokerv1.SignHeadRequest) (*brokerv1.SignHeadResponse, error) {
	if refused, _ := b.refusals(); refused != nil {
		return nil, protocol.ToConnect(refused)
	}
	res, err := b.SignReceipt(ctx, &brokerv1.SignReceiptRequest{Receipt: r.GetHead()})
	return &brokerv1.SignHeadResponse{Jws: res.GetJws()}, err
}

func (b trustService) SignReceipt(ctx context.Context, r *brokerv1.SignReceiptRequest) (*brokerv1.SignReceiptResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.receipts++
	return &brokerv1.SignReceiptResponse{Jws: fmt.Sprintf("receipt.%d.%d", b.receipts, len(r.GetReceipt()))}, nil
}

type authorityService struct{ *Broker }

func (b authorityService) CreateGrant(ctx context.Context, r *brokerv1.CreateGrantRequest) (*brokerv1.CreateGrantResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.grants[r.GetGrantId()] = &brokerv1.Grant{
		GrantId: r.GetGrantId(), TenantId: r.GetTenantId(), PrincipalId: r.GetPrincipalId(), Agent: r.GetAgent(), Credentials: r.GetCredentials(),
	}
	return &brokerv1.CreateGrantResponse{Sealed: []byte("sealed " + r.GetGrantId())}, nil
}

func (b authorityService) ListGrants(ctx context.Context, r *brokerv1.ListGrantsRequest) (*brokerv1.ListGrantsResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	out := &brokerv1.ListGrantsResponse{}
	for _, id := range slices.Sorted(maps.Keys(b.grants)) {
		if b.grants[id].GetTenantId() == r.GetTenantId() {
			out.Grants = append(out.Grants, b.grants[id])
		}
	}
	return out, nil
}

func (b authorityService) RevokeGrant(ctx context.Context, r *brokerv1.RevokeGrantRequest) (*brokerv1.RevokeGrantResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.grants[r.GetGrantId()]
	if g == nil {
		return nil, protocol.ToConnect(protocol.Errorf(protocol.CodeNotFound, "no grant %s", r.GetGrantId()))
	}
	if g.RevokedUs == 0 {
		g.RevokedUs = time.Now().UnixMicro()
	}
	return &brokerv1.RevokeGrantResponse{RevokedUs: g.RevokedUs, FlowsZeroUs: g.RevokedUs}, nil
}

func (b authorityService) RotateGrant(ctx context.Context, r *brokerv1.RotateGrantRequest) (*brokerv1.RotateGrantResponse, error) {
	return &brokerv1.RotateGrantResponse{Sealed: []byte("sealed " + r.GetGrantId() + " " + r.GetRotation())}, b.living(ctx, r.GetGrantId())
}

func (b authorityService) SettleRotation(ctx context.Context, r *brokerv1.SettleRotationRequest) (*brokerv1.SettleRotationResponse, error) {
	return &brokerv1.SettleRotationResponse{}, b.living(ctx, r.GetGrantId())
}

// living refuses what concerns a grant that is not there or was revoked.
func (b authorityService) living(ctx context.Context, id string) error {
	if _, err := onlyServers(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch g := b.grants[id]; {
	case g == nil:
		return protocol.ToConnect(protocol.Errorf(protocol.CodeNotFound, "no grant %s", id))
	case g.RevokedUs != 0:
		return protocol.ToConnect(protocol.Errorf(protocol.CodeConflict, "grant %s was revoked", id))
	}
	return nil
}

func (b authorityService) PutCredential(ctx context.Context, r *brokerv1.PutCredentialRequest) (*brokerv1.PutCredentialResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.credentials[r.GetTenantId()] == nil {
		b.credentials[r.GetTenantId()] = map[string][]byte{}
	}
	b.credentials[r.GetTenantId()][r.GetName()] = r.GetSealed()
	return &brokerv1.PutCredentialResponse{}, nil
}

func (b authorityService) ListCredentials(ctx context.Context, r *brokerv1.ListCredentialsRequest) (*brokerv1.ListCredentialsResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	out := &brokerv1.ListCredentialsResponse{}
	for _, name := range slices.Sorted(maps.Keys(b.credentials[r.GetTenantId()])) {
		out.Credentials = append(out.Credentials, &brokerv1.Credential{Name: name, UpdatedUs: time.Now().UnixMicro()})
	}
	return out, nil
}

func (b authorityService) DeleteCredential(ctx context.Context, r *brokerv1.DeleteCredentialRequest) (*brokerv1.DeleteCredentialResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.credentials[r.GetTenantId()][r.GetName()]; !ok {
		return nil, protocol.ToConnect(protocol.Errorf(protocol.CodeNotFound, "there is no credential %q: bivouac credential list shows them", r.GetName()))
	}
	delete(b.credentials[r.GetTenantId()], r.GetName())
	return &brokerv1.DeleteCredentialResponse{}, nil
}

type brokerService struct{ *Broker }

func (b brokerService) Describe(context.Context, *brokerv1.DescribeRequest) (*brokerv1.DescribeResponse, error) {
	return &brokerv1.DescribeResponse{
		BrokerId: "brk_test", Pool: "default", BootNonce: b.Boot, CapabilityVersion: protocol.Current(),
		SealRecipient: "age1test", SealStatement: "statement", RootCertificate: b.Root.PEM(),
		Models: []*brokerv1.ModelRoute{{Name: "test", ProviderModel: "test-1", DataBoundaries: []string{"personal", "code"},
			InputMicroUsdPerMtok: 1, OutputMicroUsdPerMtok: 1, Priced: true}},
		Destinations: []*brokerv1.Destination{{Name: "weather", Url: "https://weather.example"}},
		FeedAgeMs:    b.feed.age(),
	}, nil
}

func (b brokerService) CallModel(ctx context.Context, r *brokerv1.CallModelRequest, stream *connect.ServerStream[brokerv1.CallModelResponse]) error {
	if b.Backend.CallModel == nil {
		return protocol.ToConnect(protocol.Errorf(protocol.CodeUnavailable, "this broker has no model"))
	}
	done, err := b.Backend.CallModel(ctx, r, func(text string) error { return stream.Send(textDelta(text)) })
	if err != nil {
		return protocol.ToConnect(err)
	}
	if done == nil {
		return nil // a stream that is cut short
	}
	return stream.Send(modelDone(done))
}

func (b brokerService) Invoke(ctx context.Context, r *brokerv1.InvokeRequest) (*brokerv1.InvokeResponse, error) {
	if b.Backend.Invoke == nil {
		return nil, protocol.ToConnect(protocol.Errorf(protocol.CodeUnavailable, "this broker has no tool"))
	}
	res, err := b.Backend.Invoke(ctx, r)
	if err != nil {
		return nil, protocol.ToConnect(err)
	}
	return res, nil
}

func (b brokerService) LookupAction(ctx context.Context, _ *brokerv1.LookupActionRequest) (*brokerv1.LookupActionResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	state := b.Backend.Lookup
	if state == brokerv1.CallState_CALL_STATE_UNSPECIFIED {
		state = brokerv1.CallState_CALL_STATE_ABSENT
	}
	return &brokerv1.LookupActionResponse{State: state, LogSinceUs: 1}, nil
}

func (b brokerService) Usage(ctx context.Context, r *brokerv1.UsageRequest) (*brokerv1.UsageResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	out := &brokerv1.UsageResponse{BootNonce: b.Boot}
	for _, id := range r.GetSliceIds() {
		out.Slices = append(out.Slices, &brokerv1.SliceUsage{SliceId: id})
	}
	return out, nil
}

// Diagnose finds what Backend.Findings says, and names Backend.Tenants.
func (b brokerService) Diagnose(ctx context.Context, _ *brokerv1.DiagnoseRequest) (*brokerv1.DiagnoseResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	return &brokerv1.DiagnoseResponse{Findings: b.Backend.Findings, Tenants: b.Backend.Tenants}, nil
}

func (b brokerService) McpTools(_ context.Context, r *brokerv1.McpToolsRequest) (*brokerv1.McpToolsResponse, error) {
	return &brokerv1.McpToolsResponse{Destination: r.GetDestination(), Tools: []*brokerv1.McpTool{{Name: "search"}}}, nil
}

func (b brokerService) Reach(ctx context.Context, r *brokerv1.ReachRequest) (*brokerv1.ReachResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	out := &brokerv1.ReachResponse{}
	for range r.GetModels() {
		out.Models = append(out.Models, &brokerv1.Reach{Admitted: true})
	}
	for range r.GetTools() {
		out.Tools = append(out.Tools, &brokerv1.Reach{Admitted: true})
	}
	return out, nil
}

func (b brokerService) Probe(ctx context.Context, r *brokerv1.ProbeRequest) (*brokerv1.ProbeResponse, error) {
	if _, err := onlyServers(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.grants[r.GetGrantId()]
	if g.GetRevokedUs() != 0 {
		return &brokerv1.ProbeResponse{Code: string(protocol.CodePermissionDenied)}, nil
	}
	return &brokerv1.ProbeResponse{Admitted: true}, nil
}
