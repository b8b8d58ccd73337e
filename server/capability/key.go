package capability

import (
	"crypto/ed25519"
	"io"
	"sync"
	"time"

	"bivouac/edge/protocol"
)

// Key signs capabilities. It lives in memory only and prints as REDACTED.
type Key struct {
	ID        string
	Private   ed25519.PrivateKey
	NotAfter  time.Time // of its statement; zero before it is certified
	Statement string    // the root's JWS over it
}

// NewKey makes a key that still needs a statement.
func NewKey(entropy io.Reader) (*Key, error) {
	pub, priv, err := ed25519.GenerateKey(entropy)
	if err != nil {
		return nil, err
	}
	return &Key{ID: KeyID(pub), Private: priv}, nil
}

// Public half.
func (k *Key) Public() ed25519.PublicKey { return k.Private.Public().(ed25519.PublicKey) }

func (k *Key) String() string { return "capability key " + k.ID + " REDACTED" }

// GoString keeps %#v from printing the key.
func (k *Key) GoString() string { return k.String() }

// Signer is a server's current key. Use replaces it before the hour is over;
// statements of earlier keys stay in the feed until they end, since capabilities
// under them still live.
type Signer struct {
	mu sync.Mutex // guards below
	// keys, newest first; the first one signs.
	keys []*Key
}

// Use makes a certified key the current one.
func (s *Signer) Use(k *Key) error {
	if k.Statement == "" || k.NotAfter.IsZero() {
		return protocol.Errorf(protocol.CodeInternal, "signing key %s has no statement of the root", k.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = append([]*Key{k}, s.keys...)
	return nil
}

// Sign signs with the current key. Without one that is in force for the whole
// life of the capability the answer is unavailable: the broker is not reached.
func (s *Signer) Sign(c Claims) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) == 0 || c.ExpiresAt.After(s.keys[0].NotAfter) {
		return "", protocol.Errorf(protocol.CodeUnavailable, "no certified signing key: the broker has not certified one for this hour; check that bivouac-broker runs")
	}
	return s.keys[0].Sign(c)
}

// Renew reports whether a new key should be made: at two thirds of its life.
func (s *Signer) Renew(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys) == 0 || now.Add(KeyTTL/3).After(s.keys[0].NotAfter)
}

// Statements for the feed, newest first; ended ones are forgotten.
func (s *Signer) Statements(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	kept := s.keys[:0]
	for _, k := range s.keys {
		if now.Before(k.NotAfter) {
			kept, out = append(kept, k), append(out, k.Statement)
		}
	}
	clear(s.keys[len(kept):])
	s.keys = kept
	return out
}
