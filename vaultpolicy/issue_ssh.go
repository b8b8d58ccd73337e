package vaultpolicy

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"bivouac/edge/protocol"
	"bivouac/server/broker/issued"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/policies"
)

// signIn has the engine sign a key that is made here, for one command. It is no lease
// and cannot be revoked: it ends by its own short time, and until then it is good for
// that command alone.
func (i issue) signIn(ctx context.Context) (issued.Credential, error) {
	if i.use.Command == "" {
		return issued.Credential{}, protocol.Errorf(protocol.CodePolicyDenied, "the credential %q is for one command on a host, and the action names none", i.c.Name)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return issued.Credential{}, err
	}
	key, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return issued.Credential{}, err
	}
	order := issued.Order{Key: key.PublicKey(), Command: i.use.Command, KeyID: policies.KeyIDOf(i.use.Tenant) + " session=" + i.use.Session.String() + " action=" + i.use.Action.String()}
	a, err := i.v.client.Write(ctx, i.action, i.from.Path(), map[string]any{
		"public_key": string(ssh.MarshalAuthorizedKey(order.Key)), "cert_type": "user", "valid_principals": strings.Join(i.from.Principals, ","),
		"ttl": policies.TTLOf(i.from), "key_id": order.KeyID, "critical_options": map[string]string{issued.ForceCommand: order.Command},
	})
	if err != nil {
		return issued.Credential{}, i.failed(ctx, err)
	}
	cert, err := i.from.SSHCertificate(client.Text(a.Data["signed_key"]), order, time.Now())
	if err != nil {
		return issued.Credential{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the credential %q cannot be used as its %s issues it: %w; its admin looks: bivouac vault check, vault read %s", i.c.Name, i.from, err, i.from.RolePath())
	}
	signer, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		return issued.Credential{}, err
	}
	i.v.log.DebugContext(ctx, "a credential was issued", "grant", i.use.Grant, "credential", i.c.Name, "from", i.from.String(), "key_id", cert.KeyId, "serial", cert.Serial, "until", time.Unix(int64(cert.ValidBefore), 0).UTC())
	return issued.Credential{Signer: signer}, nil
}
