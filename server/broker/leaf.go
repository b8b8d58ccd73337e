package broker

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"sync"
	"time"

	"bivouac/edge/identity"
	"bivouac/server/broker/authority"
)

// leaf is the broker's own certificate. Its key is made at every start and lives
// in memory alone.
type leaf struct {
	root Root
	key  ed25519.PrivateKey
	spki []byte

	mu      sync.Mutex // guards below; held while the root signs
	current *tls.Certificate
	renewAt time.Time
}

func newLeaf(root Root) (*leaf, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	spki, err := x509.MarshalPKIXPublicKey(pub)
	return &leaf{root: root, key: key, spki: spki}, err
}

// certificate is asked at every handshake and renews itself at two thirds.
func (l *leaf) certificate() (*tls.Certificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.current != nil && now.Before(l.renewAt) && now.Before(l.current.Leaf.NotAfter) {
		return l.current, nil
	}
	chain, notAfter, err := l.root.Issue(context.Background(), authority.Leaf{Role: identity.RoleBroker, ID: l.root.BrokerID(), SPKI: l.spki})
	if err != nil {
		return nil, err
	}
	certs, err := identity.ParsePEM(chain)
	if err != nil {
		return nil, err
	}
	next := &tls.Certificate{PrivateKey: l.key, Leaf: certs[0]}
	for _, c := range certs {
		next.Certificate = append(next.Certificate, c.Raw)
	}
	l.current, l.renewAt = next, now.Add(notAfter.Sub(now)*2/3)
	return next, nil
}
