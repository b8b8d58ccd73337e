package mesh

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
	"bivouac/consul/settings"
)

const trustDomain = "11111111-2222-3333-4444-555555555555.consul"

// authority makes certificates as Consul's own does.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: rand.Text()}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, URIs: []*url.URL{{Scheme: "spiffe", Host: trustDomain}},
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, key, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// leaf answer for some URIs.
func (a *authority) leaf(life time.Duration, change func(*x509.Certificate), uris ...string) []byte {
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
	b, err := json.Marshal(leafAnswer{
		CertPEM:       string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		PrivateKeyPEM: string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})),
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return b
}

func spiffe(service string) string {
	return "spiffe://" + trustDomain + "/ns/default/dc/dc1/svc/" + service
}

// listed is Consul's answer about roots.
func listed(all ...*authority) []byte {
	a := rootsAnswer{TrustDomain: trustDomain}
	for _, x := range all {
		a.Roots = append(a.Roots, struct {
			Name, RootCert    string
			IntermediateCerts []string
			Active            bool
		}{Name: "Consul CA Root Cert", RootCert: x.pem})
	}
	b, _ := json.Marshal(a) // of strings
	return b
}

// agent of Consul: what it says is set, and a question about what is known is held.
type agent struct {
	mu      sync.Mutex
	leaf    []byte
	roots   []byte
	away    bool
	index   uint64
	changed chan struct{}
}

func newAgent(leaf, roots []byte) *agent {
	return &agent{leaf: leaf, roots: roots, index: 1, changed: make(chan struct{})}
}

func (a *agent) set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	a.index++
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *agent) Held(ctx context.Context, path string, index uint64, wait time.Duration, _ any) (client.Answer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if index == a.index && !a.away {
		changed := a.changed
		a.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(wait):
		case <-ctx.Done():
		}
		a.mu.Lock()
	}
	body := a.roots
	if path != rootsPath {
		body = a.leaf
	}
	if a.away || body == nil {
		return client.Answer{}, &client.Fault{Kind: client.Away, Asked: path, Err: errors.New("nobody there")}
	}
	return client.Answer{Body: body, Index: a.index}, ctx.Err()
}

// pair of identities, a server's and a broker's, that know what their agents say.
func pair(t *testing.T, server, broker *agent, datacenters ...string) (s, b *Identity) {
	t.Helper()
	s = New(Params{Source: server, Service: "bivouac-server", Peer: "bivouac-broker", Of: settings.Server, PeerOf: settings.Broker, Datacenters: datacenters})
	b = New(Params{Source: broker, Service: "bivouac-broker", Peer: "bivouac-server", Of: settings.Broker, PeerOf: settings.Server, Datacenters: datacenters})
	for _, i := range []*Identity{s, b} {
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- i.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	return s, b
}
