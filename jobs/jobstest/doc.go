// Package jobstest signs workload identities as Nomad does, and publishes the keys, for
// tests of who takes them where no Nomad is. What a real one signs is in the tests of
// package jobs. It owns keys and no rule.
package jobstest

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Signer is the part of Nomad that signs.
type Signer struct {
	// Asked counts how often its keys were read.
	Asked atomic.Int64

	mu   sync.Mutex // guards below
	keys map[string]crypto.Signer
	down bool
}

// NewSigner has one RSA key, of the id "one", as Nomad makes them.
func NewSigner(t testing.TB) *Signer {
	t.Helper()
	s := &Signer{keys: map[string]crypto.Signer{}}
	s.Rotate(t, "", "one")
	return s
}

// Rotate makes a key of a new id, and forgets another one. An id that begins with "ed" is
// of an EdDSA key.
func (s *Signer) Rotate(t testing.TB, old, id string) {
	t.Helper()
	var key crypto.Signer
	var err error
	if strings.HasPrefix(id, "ed") {
		_, key, err = ed25519.GenerateKey(rand.Reader)
	} else {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, old)
	s.keys[id] = key
}

// Down makes it answer nothing useful.
func (s *Signer) Down(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// ServeHTTP answers for its keys.
func (s *Signer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.Asked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		http.Error(w, "No cluster leader", http.StatusInternalServerError)
		return
	}
	var set jose.JSONWebKeySet
	for id, key := range s.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id, Use: "sig"})
	}
	_ = json.NewEncoder(w).Encode(set)
}

// RoundTrip answers without a socket, for virtual time.
func (s *Signer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := &answer{header: http.Header{}, status: http.StatusOK}
	s.ServeHTTP(w, r)
	return &http.Response{StatusCode: w.status, Status: http.StatusText(w.status), Header: w.header, Body: w, Request: r}, nil
}

type answer struct {
	strings.Builder
	reader *strings.Reader
	header http.Header
	status int
}

func (a *answer) Header() http.Header { return a.header }
func (a *answer) WriteHeader(s int)   { a.status = s }
func (a *answer) Close() error        { return nil }
func (a *answer) Read(p []byte) (int, error) {
	if a.reader == nil {
		a.reader = strings.NewReader(a.String())
	}
	return a.reader.Read(p)
}

// Claims are those of a runner's task, as Nomad 2.0 writes them.
func Claims(node string) map[string]any {
	now := time.Now()
	return map[string]any{
		"aud": "bivouac.example.org", "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(15 * time.Minute).Unix(),
		"jti": "5b6a2fe4-0ab9-7f4c-0e2f-8b1f7c4d3e2a", "sub": "global:agents:bivouac-runner:runner:edge:bivouac",
		"nomad_namespace": "agents", "nomad_job_id": "bivouac-runner", "nomad_task": "edge",
		"nomad_allocation_id": "7d2f4f0e-9a53-2b1c-6d5e-4f3a2b1c0d9e",
		"extra_claims":        map[string]any{"node_id": node, "node_pool": "agents"},
	}
}

// Sign claims with the key of an id, with what is laid over them; nil takes one away.
func (s *Signer) Sign(t testing.TB, id string, claims map[string]any, over map[string]any) string {
	t.Helper()
	s.mu.Lock()
	key := s.keys[id]
	s.mu.Unlock()
	claims = maps.Clone(claims)
	for name, value := range over {
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
	}
	algorithm := jose.RS256
	if _, ok := key.(ed25519.PrivateKey); ok {
		algorithm = jose.EdDSA
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", id))
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := signer.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
