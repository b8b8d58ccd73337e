// Package meshtest is an authority of Consul's mesh, and an agent that answers about it
// without a Consul: for tests in virtual time.
package meshtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"sync"
	"testing"
	"time"

	"bivouac/consul/client"
)

// TrustDomain of every authority here.
const TrustDomain = "11111111-2222-3333-4444-555555555555.consul"

// Authority makes certificates as Consul's own does.
type Authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
}

// NewAuthority has a root of its own.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: rand.Text()}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, URIs: []*url.URL{{Scheme: "spiffe", Host: TrustDomain}},
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{t, key, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// Leaf is an agent's answer about one, for some URIs.
func (a *Authority) Leaf(life time.Duration, change func(*x509.Certificate), uris ...string) []byte {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			a.t.Fatal(err)
		}
		of.URIs = append(of.URIs, u)
	}
	if change != nil {
		change(of)
	}
	der, err := x509.CreateCertificate(rand.Reader, of, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	b, err := json.Marshal(struct{ CertPEM, PrivateKeyPEM string }{
		CertPEM:       string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		PrivateKeyPEM: string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})),
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return b
}

// SPIFFE is the name of a service in this mesh.
func SPIFFE(service string) string {
	return "spiffe://" + TrustDomain + "/ns/default/dc/dc1/svc/" + service
}

// Listed is Consul's answer about roots.
func Listed(all ...*Authority) []byte {
	type root struct{ Name, RootCert string }
	var roots []root
	for _, x := range all {
		roots = append(roots, root{"Consul CA Root Cert", x.pem})
	}
	b, _ := json.Marshal(map[string]any{"TrustDomain": TrustDomain, "Roots": roots}) // of strings
	return b
}

const rootsPath = "agent/connect/ca/roots"

// Agent of Consul: what it says is set, and a question about what is known is held. Its
// fields are read and written in Set.
type Agent struct {
	Leaf, Roots []byte
	Away        bool

	mu      sync.Mutex // guards all
	index   uint64
	changed chan struct{}
}

// NewAgent says this leaf and these roots.
func NewAgent(leaf, roots []byte) *Agent {
	return &Agent{Leaf: leaf, Roots: roots, index: 1, changed: make(chan struct{})}
}

// Set changes what it says.
func (a *Agent) Set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	a.index++
	close(a.changed)
	a.changed = make(chan struct{})
}

// Held answers: mesh.Source.
func (a *Agent) Held(ctx context.Context, path string, index uint64, wait time.Duration, _ any) (client.Answer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if index == a.index && !a.Away {
		changed := a.changed
		a.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(wait):
		case <-ctx.Done():
		}
		a.mu.Lock()
	}
	body := a.Roots
	if path != rootsPath {
		body = a.Leaf
	}
	if a.Away || body == nil {
		return client.Answer{}, &client.Fault{Kind: client.Away, Asked: path, Err: errors.New("nobody there")}
	}
	return client.Answer{Body: body, Index: a.index}, ctx.Err()
}
