package workload

import (
	"context"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"bivouac/edge/protocol"
)

// Times and sizes of the key set.
const (
	// keysFresh is how long keys are used without asking for them again: a key that
	// Nomad has retired is forgotten then.
	keysFresh = 10 * time.Minute
	// keysStale is how long they are used while Nomad cannot be asked.
	keysStale = time.Hour
	// keysAgain is the least time between two questions, so that identities with
	// invented key ids cost Nomad nothing.
	keysAgain    = 5 * time.Second
	fetchTimeout = 5 * time.Second
	keysMost     = 1 << 20
)

// JWKSPath is where Nomad publishes its keys.
const JWKSPath = "/.well-known/jwks.json"

// Keys are Nomad's public keys, by their ids.
type Keys struct {
	url    string
	client func() (*http.Client, error)
	turn   chan struct{} // held by who asks

	mu      sync.Mutex // guards below
	known   map[string]any
	gotAt   time.Time
	askedAt time.Time
	failed  error // of the last question
}

// NewKeys asks nobody. The client is made for each question, so that a renewed
// authority counts.
func NewKeys(address string, client func() (*http.Client, error)) *Keys {
	return &Keys{url: address + JWKSPath, client: client, turn: make(chan struct{}, 1)}
}

// Find is the key of an id, asked for when it is not known or not fresh.
func (k *Keys) Find(ctx context.Context, id string) (any, error) {
	if key, age := k.get(id); key != nil && age < keysFresh {
		return key, nil
	}
	select {
	case k.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-k.turn }()
	key, age := k.get(id)
	if key != nil && age < keysFresh {
		return key, nil // somebody else has asked meanwhile
	}
	err := k.ask(ctx)
	if key, age = k.get(id); key != nil && age < keysStale {
		return key, nil
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeUnavailable,
			"the keys with which Nomad signs workload identities cannot be read: %w; see that %s answers this server: `curl %s`", err, k.url, k.url)
	}
	return nil, refused("Nomad at %s has no key %q: it is of another Nomad, or its key was retired", k.url, id)
}

func (k *Keys) get(id string) (key any, age time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known[id], time.Since(k.gotAt)
}

// ask reads the set, unless that was tried a moment ago. The holder of the turn calls it.
func (k *Keys) ask(ctx context.Context) error {
	k.mu.Lock()
	recent, failed := !k.askedAt.IsZero() && time.Since(k.askedAt) < keysAgain, k.failed
	k.mu.Unlock()
	if recent {
		return failed
	}
	known, err := k.fetch(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.askedAt, k.failed = time.Now(), err
	if err == nil {
		k.known, k.gotAt = known, k.askedAt
	}
	return err
}

// fetch reads the set for everybody: who asked may hang up meanwhile.
func (k *Keys) fetch(ctx context.Context) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer cancel()
	client, err := k.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered %s", res.Status)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, keysMost+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > keysMost:
		return nil, fmt.Errorf("its key set is larger than %d bytes", keysMost)
	}
	return readKeys(body)
}

// readKeys takes the keys that can sign an identity, and no others.
func readKeys(body []byte) (map[string]any, error) {
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("what it answered is no key set: %w", err)
	}
	known := map[string]any{}
	for _, key := range set.Keys {
		switch public := key.Key.(type) {
		case *rsa.PublicKey:
			if public.N.BitLen() >= 2048 {
				known[key.KeyID] = public
			}
		case ed25519.PublicKey:
			known[key.KeyID] = public
		}
	}
	delete(known, "")
	if len(known) == 0 {
		return nil, errors.New("its key set has no key of RS256 or EdDSA")
	}
	return known, nil
}
