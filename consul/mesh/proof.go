package mesh

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
)

// proof as it travels.
type proof struct {
	Chain     []byte `json:"chain"` // PEM, leaf first
	Signature []byte `json:"signature"`
}

// signed is the text under a proof's signature.
func signed(b link.Binding, leaf *x509.Certificate) []byte {
	side := map[bool]string{true: "dialler", false: "listener"}[b.Dialler]
	of := sha256.Sum256(leaf.Raw)
	text := append([]byte("bivouac mesh identity, v1\n"+side+"\n"), b.Key[:]...)
	return append(text, of[:]...)
}

// use of a leaf's key by the side that shows it.
func use(b link.Binding) x509.ExtKeyUsage {
	if b.Dialler {
		return x509.ExtKeyUsageClientAuth
	}
	return x509.ExtKeyUsageServerAuth
}

// Show proves this process by the newest leaf. A leaf that has ended proves nothing.
func (i *Identity) Show(b link.Binding) ([]byte, error) {
	l := i.leaf.known.Load()
	if l == nil {
		return nil, i.lacks(&i.leaf, "Consul has given no mesh identity to %s yet", i.p.Service)
	}
	if end := l.cert.NotAfter; !i.p.Now().Before(end) {
		return nil, i.lacks(&i.leaf, "the mesh identity of %s ended at %s, and Consul has given no other since", i.p.Service, stamp(end))
	}
	signature, err := sign(l.key, signed(b, l.cert))
	if err != nil {
		return nil, err
	}
	return json.Marshal(proof{Chain: l.chain, Signature: signature})
}

func sign(key crypto.Signer, text []byte) ([]byte, error) {
	switch key.(type) {
	case ed25519.PrivateKey:
		return key.Sign(rand.Reader, text, crypto.Hash(0))
	case *rsa.PrivateKey:
		sum := sha256.Sum256(text)
		return key.Sign(rand.Reader, sum[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256})
	}
	sum := sha256.Sum256(text)
	return key.Sign(rand.Reader, sum[:], crypto.SHA256)
}

func signedBy(leaf *x509.Certificate, text, signature []byte) bool {
	sum := sha256.Sum256(text)
	switch key := leaf.PublicKey.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(key, sum[:], signature)
	case ed25519.PublicKey:
		return ed25519.Verify(key, text, signature)
	case *rsa.PublicKey:
		return rsa.VerifyPSS(key, crypto.SHA256, sum[:], signature, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}) == nil
	}
	return false
}

// errShown is what was shown and is no proof.
func refuse(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeUnauthenticated, format, args...)
}

// Check judges what the other side showed.
func (i *Identity) Check(b link.Binding, shown []byte) (link.Vouched, error) {
	if shown == nil {
		return nil, refuse("%s shows no identity of Consul's mesh, and the mesh block here asks for it: add service {} and mesh {} to the consul block of %s.hcl there, and restart it", i.p.Peer, i.p.PeerOf)
	}
	var p proof
	if err := json.Unmarshal(shown, &p); err != nil {
		return nil, refuse("what %s shows is no proof of a mesh identity: %w", i.p.Peer, err)
	}
	chain, err := identity.ParsePEM(p.Chain)
	if err != nil || len(chain) > maxChain {
		return nil, refuse("the mesh identity that is shown cannot be read: %w", errors.Join(err, tooLong(len(chain))))
	}
	if !signedBy(chain[0], signed(b, chain[0]), p.Signature) {
		return nil, refuse("the proof of the mesh identity is not of this connection")
	}
	out := &peer{of: i, chain: chain, use: use(b)}
	if out.id, err = idOf(chain[0]); err != nil {
		return nil, refuse("the mesh identity that is shown: %w", err)
	}
	return out, out.judge()
}

func tooLong(n int) error {
	if n > maxChain {
		return errors.New("its chain has more certificates than any that Consul makes")
	}
	return nil
}

// peer is what the other side has proven: link.Vouched.
type peer struct {
	of    *Identity
	id    id
	chain []*x509.Certificate
	use   x509.ExtKeyUsage
	// judged under these roots, until then.
	judged atomic.Pointer[judged]
}

type judged struct {
	under *roots
	until time.Time
}

// judge a peer under the roots, the trust domain and the names of now.
func (p *peer) judge() error {
	i := p.of
	r := i.roots.known.Load()
	if r == nil {
		return i.lacks(&i.roots, "Consul has not said yet which roots of its mesh count")
	}
	switch {
	case p.id.trustDomain != r.trustDomain:
		return refuse("%s is of another mesh: its trust domain is not %s", p.id, r.trustDomain)
	case p.id.namespace != defaultTenancy || p.id.partition != defaultTenancy:
		return refuse("%s is of the namespace %q and the partition %q: both must be the default ones", p.id, p.id.namespace, p.id.partition)
	case p.id.service != i.p.Peer:
		return refuse("%s is the service %q, and %q is expected: service.peer in the consul block of %s.hcl says which", p.id, p.id.service, i.p.Peer, i.p.Of)
	}
	if err := i.admits(p.id.datacenter); err != nil {
		return err
	}
	until, err := r.verify(p.chain, p.use, i.p.Now())
	if err != nil {
		return refuse("%s does not hang from a root that Consul lists now (%s): %w", p.id, strings.Join(r.names, ", "), err)
	}
	p.judged.Store(&judged{under: r, until: until})
	return nil
}

// admits a datacenter: those of the block, else the one of this process' own leaf.
func (i *Identity) admits(datacenter string) error {
	names := i.p.Datacenters
	if len(names) == 0 {
		l := i.leaf.known.Load()
		if l == nil {
			return i.lacks(&i.leaf, "Consul has given no mesh identity to %s yet, so that its datacenter is not known", i.p.Service)
		}
		names = []string{l.id.datacenter}
	}
	if !slices.Contains(names, datacenter) {
		return refuse("a service of the datacenter %q is not believed here, but of %s: mesh.datacenters in the consul block of %s.hcl says which", datacenter, strings.Join(names, ", "), i.p.Of)
	}
	return nil
}

// Name of the service.
func (p *peer) Name() string { return p.id.service }

// Until the first certificate of its chain ends.
func (p *peer) Until() time.Time { return p.judged.Load().until }

// Holds refuses once the chain has ended, and judges anew where the roots are others.
func (p *peer) Holds() error {
	j := p.judged.Load()
	if !p.of.p.Now().Before(j.until) {
		err := protocol.Errorf(protocol.CodeUnavailable, "the mesh identity of %s on this connection ended at %s, and it has shown no other since: look at Consul from its machine (bivouac-%s doctor)", p.id.service, stamp(j.until), p.of.p.PeerOf)
		err.RetryAfter = time.Second
		return err
	}
	if p.of.roots.known.Load() == j.under {
		return nil
	}
	return p.judge()
}
