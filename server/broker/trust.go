package broker

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"

	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
	"bivouac/server/ledger"
)

// trustService is the root's side: who is a server, who is a runner.
type trustService struct{ *Broker }

// EnrollServer makes the key of this connection a server, for a single-use code.
func (s trustService) EnrollServer(ctx context.Context, in *brokerv1.EnrollServerRequest) (*brokerv1.EnrollServerResponse, error) {
	peer := peerOf(ctx)
	id, err := s.ports.Root.EnrolServer(ctx, in.GetCode(), peer.PublicKey)
	if err != nil {
		return nil, err
	}
	chain, err := s.certifyServer(ctx, id, peer, in.GetNames())
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(ctx, "server enrolled", "server", id)
	return &brokerv1.EnrollServerResponse{ServerId: id, CertificateChain: chain, RootCertificate: rootPEM(s.ports.Root.Root())}, nil
}

// RenewServer certifies the same key anew. A server whose certificate ended
// shows its key by itself: what was enrolled stays enrolled.
func (s trustService) RenewServer(ctx context.Context, in *brokerv1.RenewServerRequest) (*brokerv1.RenewServerResponse, error) {
	peer := peerOf(ctx)
	id, err := s.ports.Root.EnrolledServer(ctx, peer.Thumbprint)
	if err != nil {
		return nil, err
	}
	if peer.Role == identity.RoleServer && peer.ID != id {
		return nil, denied("the certificate names server %s, the key was enrolled as %s", peer.ID, id)
	}
	chain, err := s.certifyServer(ctx, id, peer, in.GetNames())
	if err != nil {
		return nil, err
	}
	return &brokerv1.RenewServerResponse{CertificateChain: chain}, nil
}

func (b *Broker) certifyServer(ctx context.Context, id string, peer identity.Peer, names []string) ([]byte, error) {
	chain, _, err := b.ports.Root.Issue(ctx, authority.Leaf{Role: identity.RoleServer, ID: id, SPKI: peer.PublicKey, Names: names})
	return chain, err
}

// CertifySigningKey states that the key signs capabilities for this server, for
// an hour. The next one is asked before it ends, so that they overlap.
func (s trustService) CertifySigningKey(ctx context.Context, in *brokerv1.CertifySigningKeyRequest) (*brokerv1.CertifySigningKeyResponse, error) {
	pub, err := ed25519Key(in.GetPublicKey())
	if err != nil {
		return nil, err
	}
	statement, notAfter, err := s.ports.Root.CertifyKey(ctx, peerOf(ctx).ID, pub)
	if err != nil {
		return nil, err
	}
	s.feed.Certify(statement)
	return &brokerv1.CertifySigningKeyResponse{Statement: statement, KeyId: capability.KeyID(pub), NotAfterUs: notAfter.UnixMicro()}, nil
}

// ed25519Key reads the 32 bytes of a key, or its DER form.
func ed25519Key(b []byte) (ed25519.PublicKey, error) {
	if len(b) == ed25519.PublicKeySize {
		return b, nil
	}
	parsed, err := x509.ParsePKIXPublicKey(b)
	pub, ok := parsed.(ed25519.PublicKey)
	if err != nil || !ok {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the signing key is no Ed25519 public key")
	}
	return pub, nil
}

// CertifyRunner certifies a runner's key. Its id hangs from the key, so a server
// cannot give one runner's name to another.
func (s trustService) CertifyRunner(ctx context.Context, in *brokerv1.CertifyRunnerRequest) (*brokerv1.CertifyRunnerResponse, error) {
	id, err := protocol.ParseID[protocol.RunnerKind](in.GetRunnerId())
	if err != nil {
		return nil, err
	}
	tenant, err := protocol.ParseID[protocol.TenantKind](in.GetTenantId())
	if err != nil {
		return nil, err
	}
	if id == "" || tenant == "" || id != identity.RunnerID(in.GetPublicKey()) {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "runner %s is not the runner of this key", id)
	}
	chain, notAfter, err := s.ports.Root.Issue(ctx, authority.Leaf{Role: identity.RoleRunner, ID: id.String(), Tenant: tenant, SPKI: in.GetPublicKey()})
	if err != nil {
		return nil, err
	}
	return &brokerv1.CertifyRunnerResponse{CertificateChain: chain, RootCertificate: rootPEM(s.ports.Root.Root()), NotAfterUs: notAfter.UnixMicro()}, nil
}

// SignReceipt signs canonical JSON with the receipt key. A ledger's head goes
// through SignHead alone, where it has to follow the last one.
func (s trustService) SignReceipt(ctx context.Context, in *brokerv1.SignReceiptRequest) (*brokerv1.SignReceiptResponse, error) {
	if err := signable(in.GetReceipt()); err != nil {
		return nil, err
	}
	if ledger.IsHead(in.GetReceipt()) {
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "the head of a ledger is signed by SignHead, with the proof that it follows the last one: update bivouac-server")
	}
	jws, err := s.ports.Root.SignReceipt(ctx, in.GetReceipt())
	if err != nil {
		return nil, err
	}
	return &brokerv1.SignReceiptResponse{Jws: jws}, nil
}

func rootPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
