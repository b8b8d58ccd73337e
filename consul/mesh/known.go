package mesh

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"bivouac/edge/identity"
)

// leaf of this process, with its key. It does not change.
type leaf struct {
	id    id
	cert  *x509.Certificate
	chain []byte // PEM, as it is shown
	key   crypto.Signer
}

// maxChain bounds what is shown.
const maxChain = 8

// leafAnswer is what the agent says of one.
type leafAnswer struct {
	CertPEM       string
	PrivateKeyPEM string
}

// leafOf an answer, for the service that was asked for.
func leafOf(body []byte, service string, now time.Time) (*leaf, error) {
	var a leafAnswer
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, errors.New("the answer is no leaf") // no word of it: it may hold a key
	}
	pair, err := tls.X509KeyPair([]byte(a.CertPEM), []byte(a.PrivateKeyPEM))
	if err != nil {
		return nil, errors.New("the leaf and its key do not belong together")
	}
	certs, err := identity.ParsePEM([]byte(a.CertPEM))
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("the leaf's key cannot sign")
	}
	l := &leaf{cert: certs[0], chain: []byte(a.CertPEM), key: key}
	if l.id, err = idOf(l.cert); err != nil {
		return nil, fmt.Errorf("the leaf: %w", err)
	}
	switch {
	case l.id.service != service:
		return nil, fmt.Errorf("the leaf is of %q, and %q was asked for", l.id.service, service)
	case !now.Before(l.cert.NotAfter):
		return nil, fmt.Errorf("the leaf ended at %s", stamp(l.cert.NotAfter))
	}
	return l, nil
}

func (l *leaf) same(other *leaf) bool {
	return other != nil && bytes.Equal(l.cert.Raw, other.cert.Raw) && bytes.Equal(l.chain, other.chain)
}

// roots that Consul lists. They do not change.
type roots struct {
	trustDomain string
	pool        *x509.CertPool
	between     []*x509.Certificate
	names       []string // for people
	body        []byte
}

type rootsAnswer struct {
	ActiveRootID string
	TrustDomain  string
	Roots        []struct {
		Name, RootCert    string
		IntermediateCerts []string
		Active            bool
	}
}

func rootsOf(body []byte) (*roots, error) {
	var a rootsAnswer
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, errors.New("the answer is no list of roots")
	}
	if a.TrustDomain == "" || len(a.Roots) == 0 {
		return nil, errors.New("it lists no root: the mesh is off, or has no authority yet")
	}
	r := &roots{trustDomain: strings.ToLower(a.TrustDomain), pool: x509.NewCertPool(), body: body}
	for _, root := range a.Roots {
		certs, err := identity.ParsePEM([]byte(root.RootCert))
		if err != nil {
			return nil, fmt.Errorf("the root %q: %w", root.Name, err)
		}
		for _, c := range certs {
			r.pool.AddCert(c)
			r.names = append(r.names, fmt.Sprintf("%.12s… until %s", identity.Fingerprint(c), stamp(c.NotAfter)))
		}
		for _, text := range root.IntermediateCerts {
			if strings.TrimSpace(text) == "" {
				continue
			}
			more, err := identity.ParsePEM([]byte(text))
			if err != nil {
				return nil, fmt.Errorf("an intermediate of the root %q: %w", root.Name, err)
			}
			r.between = append(r.between, more...)
		}
	}
	return r, nil
}

// verify a chain under the roots of now. until is when the first of it ends.
func (r *roots) verify(chain []*x509.Certificate, use x509.ExtKeyUsage, now time.Time) (until time.Time, err error) {
	between := x509.NewCertPool()
	for _, c := range append(chain[1:len(chain):len(chain)], r.between...) {
		between.AddCert(c)
	}
	found, err := chain[0].Verify(x509.VerifyOptions{Roots: r.pool, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}})
	if err != nil {
		return time.Time{}, err
	}
	for _, way := range found { // the one that lasts
		end := way[0].NotAfter
		for _, c := range way {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if end.After(until) {
			until = end
		}
	}
	return until, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
