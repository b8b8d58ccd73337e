package vaultpolicy

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/issued"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/policies"
)

// clientKey of a client certificate. It lives in this process, for one action.
func clientKey(kind string) (crypto.Signer, error) {
	switch kind {
	case issued.KeyEC:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case issued.KeyRSA:
		return rsa.GenerateKey(rand.Reader, 2048)
	case issued.KeyEd25519:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, protocol.Errorf(protocol.CodeInternal, "there is no key type %q", kind)
}

// certificate has the engine sign a key that is made here: not even the server learns
// it. It is no lease, and ends by its own short time.
func (i issue) certificate(ctx context.Context) (issued.Credential, error) {
	key, err := clientKey(i.from.KeyType)
	if err != nil {
		return issued.Credential{}, err
	}
	if err := i.from.Apart(i.v.cfg.Tenants); err != nil {
		return issued.Credential{}, err
	}
	name, err := i.from.NameFor(i.use.TenantName, i.use.Agent, i.use.Principal.String())
	if err != nil {
		return issued.Credential{}, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		return issued.Credential{}, err
	}
	a, err := i.v.client.Write(ctx, i.action, i.from.Path(), map[string]any{
		"csr": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})), "common_name": name, "ttl": policies.TTLOf(i.from), "format": "pem",
	})
	if err != nil {
		return issued.Credential{}, i.failed(ctx, err)
	}
	chain := append([]string{client.Text(a.Data["certificate"])}, client.Texts(a.Data["ca_chain"])...)
	pair, err := i.pair(key, name, chain)
	if err != nil {
		return issued.Credential{}, protocol.Errorf(protocol.CodeFailedPrecondition, "the credential %q cannot be used as its %s issues it: %w; its admin looks: vault read %s", i.c.Name, i.from, err, i.from.RolePath())
	}
	i.v.log.DebugContext(ctx, "a credential was issued", "grant", i.use.Grant, "credential", i.c.Name, "from", i.from.String(), "serial", client.Text(a.Data["serial_number"]), "until", pair.Leaf.NotAfter)
	return issued.Credential{Certificate: pair}, nil
}

// clockSlack is how much later than asked a certificate may end.
const clockSlack = time.Minute

// pair holds what came back against what was asked for.
func (i issue) pair(key crypto.Signer, name string, chain []string) (*tls.Certificate, error) {
	out := &tls.Certificate{PrivateKey: key}
	for n, text := range chain {
		block, _ := pem.Decode([]byte(text))
		if block == nil {
			return nil, errors.New("it is no certificate (PEM)")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		switch {
		case n == 0:
			out.Leaf = cert
		case cert.CheckSignatureFrom(cert) == nil:
			continue // a root is trusted or not, whoever sends it
		}
		out.Certificate = append(out.Certificate, cert.Raw)
	}
	pub, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	switch leaf := out.Leaf; {
	case !ok || !pub.Equal(leaf.PublicKey):
		return nil, errors.New("it is for another key")
	case leaf.Subject.CommonName != name:
		return nil, fmt.Errorf("it is for %q, not for %q", leaf.Subject.CommonName, name)
	case leaf.IsCA:
		return nil, errors.New("it is an authority, which signs others")
	case time.Until(leaf.NotAfter) > i.from.Life()+clockSlack:
		return nil, fmt.Errorf("it lives until %s, longer than the %s that were asked for", leaf.NotAfter.UTC().Format(time.RFC3339), i.from.TTL)
	}
	return out, nil
}
