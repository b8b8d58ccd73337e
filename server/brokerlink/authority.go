package brokerlink

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/protocol/brokerv1/brokerv1connect"
)

// CreateGrant returns ciphertext that only the broker opens.
func (l *Link) CreateGrant(ctx context.Context, req *brokerv1.CreateGrantRequest) ([]byte, error) {
	res, err := ask(ctx, l, quickCall, (*peers).authorityService, brokerv1connect.AuthorityServiceClient.CreateGrant,
		req)
	return res.GetSealed(), err
}

// RevokeGrant returns when no flow under the grant is left.
func (l *Link) RevokeGrant(ctx context.Context, id protocol.GrantID) (*brokerv1.RevokeGrantResponse, error) {
	return ask(ctx, l, slowCall, (*peers).authorityService, brokerv1connect.AuthorityServiceClient.RevokeGrant,
		&brokerv1.RevokeGrantRequest{GrantId: id.String()})
}

// RotateGrant returns the grant sealed with a new secret part, beside the old one.
func (l *Link) RotateGrant(ctx context.Context, id protocol.GrantID, rotation string) ([]byte, error) {
	res, err := ask(ctx, l, quickCall, (*peers).authorityService, brokerv1connect.AuthorityServiceClient.RotateGrant,
		&brokerv1.RotateGrantRequest{GrantId: id.String(), Rotation: rotation})
	return res.GetSealed(), err
}

// SettleRotation ends every secret part of a grant but that of the rotation.
func (l *Link) SettleRotation(ctx context.Context, id protocol.GrantID, rotation string) error {
	_, err := ask(ctx, l, quickCall, (*peers).authorityService, brokerv1connect.AuthorityServiceClient.SettleRotation,
		&brokerv1.SettleRotationRequest{GrantId: id.String(), Rotation: rotation})
	return err
}

// PutCredential relays ciphertext; the server cannot read it. INV-17.
func (l *Link) PutCredential(ctx context.Context, tenant protocol.TenantID, name string, sealed []byte) error {
	_, err := ask(ctx, l, quickCall, (*peers).authorityService, brokerv1connect.AuthorityServiceClient.PutCredential,
		&brokerv1.PutCredentialRequest{TenantId: tenant.String(), Name: name, Sealed: sealed})
	return err
}

// Credentials of a tenant by name; never their values.
func (l *Link) Credentials(ctx context.Context, tenant protocol.TenantID) ([]*brokerv1.Credential, error) {
	res, err := ask(ctx, l, quickCall, (*peers).authorityService, brokerv1connect.AuthorityServiceClient.ListCredentials,
		&brokerv1.ListCredentialsRequest{TenantId: tenant.String()})
	return res.GetCredentials(), err
}

// DeleteCredential removes one of a tenant.
func (l *Link) DeleteCredential(ctx context.Context, tenant protocol.TenantID, name string) error {
	_, err := ask(ctx, l, quickCall, (*peers).authorityService, brokerv1connect.AuthorityServiceClient.DeleteCredential,
		&brokerv1.DeleteCredentialRequest{TenantId: tenant.String(), Name: name})
	return err
}

// CertifyRunner asks the root for a runner's certificate of 24 hours.
func (l *Link) CertifyRunner(ctx context.Context, runner protocol.RunnerID, tenant protocol.TenantID, spki []byte) (chain, root []byte, err error) {
	res, err := ask(ctx, l, quickCall, (*peers).trustService, brokerv1connect.TrustServiceClient.CertifyRunner,
		&brokerv1.CertifyRunnerRequest{RunnerId: runner.String(), TenantId: tenant.String(), PublicKey: spki})
	return res.GetCertificateChain(), res.GetRootCertificate(), err
}

// LastHead of a tenant's ledger that the broker signed.
func (l *Link) LastHead(ctx context.Context, tenant protocol.TenantID) (*brokerv1.LastHeadResponse, error) {
	return ask(ctx, l, quickCall, (*peers).trustService, brokerv1connect.TrustServiceClient.LastHead,
		&brokerv1.LastHeadRequest{TenantId: tenant.String()})
}

// SignHead asks for the receipt key's signature over a ledger's head.
func (l *Link) SignHead(ctx context.Context, req *brokerv1.SignHeadRequest) (string, error) {
	res, err := ask(ctx, l, quickCall, (*peers).trustService, brokerv1connect.TrustServiceClient.SignHead,
		req)
	return res.GetJws(), err
}

// SignReceipt asks for the receipt key's signature.
func (l *Link) SignReceipt(ctx context.Context, receipt []byte) (string, error) {
	res, err := ask(ctx, l, quickCall, (*peers).trustService, brokerv1connect.TrustServiceClient.SignReceipt,
		&brokerv1.SignReceiptRequest{Receipt: receipt})
	return res.GetJws(), err
}
