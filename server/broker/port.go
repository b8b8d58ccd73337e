package broker

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"time"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/issued"
	"bivouac/server/broker/secret"
)

// Authority holds grants and credentials: the embedded keyring, or Vault or
// OpenBao. Its suite is authoritytest. Everything that it answered is durable.
type Authority interface {
	Grants
	Credentials
}

// Grants are the renewable authority of principals to agents.
type Grants interface {
	Rotations
	// CreateGrant returns the grant sealed: ciphertext that only this port opens.
	// The same grant again is the same grant.
	CreateGrant(ctx context.Context, g authority.Grant) (sealed []byte, err error)
	Grants(ctx context.Context, tenant protocol.TenantID) ([]authority.Grant, error)
	// RevokeGrant refuses every later Mint and Alive. INV-13.
	RevokeGrant(ctx context.Context, id protocol.GrantID) (authority.Grant, error)
	// Alive answers from memory: it is asked for every open flow, many times a
	// second.
	Alive(ctx context.Context, id protocol.GrantID) error
	// Mint hands out the one credential of one request under a grant.
	Mint(ctx context.Context, u authority.Use) (secret.Value, error)
	// Run watches until ctx ends and calls ended, from one goroutine, for every
	// grant that it knows as revoked: those of before at the start, later ones as
	// they are seen, and from then on Mint and Alive refuse them. INV-13.
	Run(ctx context.Context, ended func(authority.Ended)) error
}

// Issuer makes credentials for one action. A server with engines is one, and the
// keyring is none: it stores values. An Authority that is one issues under its grants.
type Issuer interface {
	// Issue has an engine make what the credential of a use stands for. The refusals are
	// Mint's. What was issued ends with the grant, and soon by itself.
	Issue(ctx context.Context, u authority.Use, from *issued.From) (issued.Credential, error)
	// Opened refuses a credential that no grant of the tenant can use yet.
	Opened(ctx context.Context, tenant protocol.TenantID, name string, from *issued.From) error
}

// Credentials are what grants and model routes name.
type Credentials interface {
	// Recipient to which credentials are sealed, and the root's word for it.
	Recipient() (recipient, statement string)
	PutCredential(ctx context.Context, tenant protocol.TenantID, name string, sealed []byte) error
	Credentials(ctx context.Context, tenant protocol.TenantID) ([]authority.Credential, error)
	DeleteCredential(ctx context.Context, tenant protocol.TenantID, name string) error
	// ReplaceCredential puts a value in the place of the very one that Mint or RouteKey
	// gave last, durably before it answers. Where another was stored since, that one
	// stays and it is CodeConflict.
	ReplaceCredential(ctx context.Context, tenant protocol.TenantID, name string, was, is secret.Value) error
	// RouteKey is the key that the operator bound to a model route.
	RouteKey(ctx context.Context, tenant protocol.TenantID, name string) (secret.Value, error)
}

// Root signs who is who. It never shows a key.
type Root interface {
	Enrolments
	BrokerID() string
	Root() *x509.Certificate
	Issue(ctx context.Context, l authority.Leaf) (chainPEM []byte, notAfter time.Time, err error)
	CertifyKey(ctx context.Context, server string, pub ed25519.PublicKey) (statement string, notAfter time.Time, err error)
	SignReceipt(ctx context.Context, receipt []byte) (jws string, err error)
}

// Enrolments are the servers that this broker trusts.
type Enrolments interface {
	// EnrolServer burns a code for one key; EnrolledServer finds the key again.
	EnrolServer(ctx context.Context, code string, spki []byte) (serverID string, err error)
	EnrolledServer(ctx context.Context, thumbprint string) (serverID string, err error)
}

// Paths says who may reach what: files, or Consul. Its suite is pathstest.
type Paths interface {
	// Decide about one request; without one, whether any could be allowed. It never waits.
	Decide(source, destination string, r *consul.Request) consul.Decision
	// Run watches until ctx ends and calls changed after every change.
	Run(ctx context.Context, changed func()) error
}
