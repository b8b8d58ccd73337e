package vaultpolicy

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"strconv"
	"sync"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/policies"
)

// The broker may write a credential and not read it, so that it cannot compare what is
// stored. The server does: a write names the version in whose place it comes, and the
// broker remembers, as a digest, which version a grant read last.

// versions are what was read last, by credential.
type versions struct {
	mu   sync.Mutex // guards below
	last map[policies.Credential]readVersion
}

type readVersion struct {
	digest [sha256.Size]byte
	number int64
}

func (v *versions) note(c policies.Credential, value secret.Value, number int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil {
		v.last = map[policies.Credential]readVersion{}
	}
	v.last[c] = readVersion{sha256.Sum256([]byte(value.Reveal())), number}
}

func (v *versions) of(c policies.Credential, value secret.Value) (int64, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r, ok := v.last[c]
	sum := sha256.Sum256([]byte(value.Reveal()))
	return r.number, ok && subtle.ConstantTimeCompare(sum[:], r.digest[:]) == 1
}

// versionOf an answer that holds a credential.
func versionOf(a client.Answer) int64 {
	n, err := strconv.ParseInt(number(client.Map(a.Data["metadata"])["version"]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// ReplaceCredential puts a value in the place of the version that a grant read last, if
// that was it and no other was written since. One that was deleted meanwhile stays so:
// a version that is deleted goes on being the newest, which the write alone cannot see.
func (v *Vault) ReplaceCredential(ctx context.Context, tenant protocol.TenantID, name string, was, is secret.Value) error {
	c := policies.Credential{Tenant: tenant, Name: name}
	if _, done := v.versions.of(c, is); done { // it was done before, and the answer lost
		return nil
	}
	version, known := v.versions.of(c, was)
	if !known || version == 0 {
		return protocol.Errorf(protocol.CodeConflict, "the credential %q was stored anew meanwhile", name)
	}
	if n, err := v.newest(ctx, c); err != nil {
		return err
	} else if !n.readable {
		return protocol.Errorf(protocol.CodeNotFound, "the credential %q was deleted, and is not written again: store another with bivouac credential set %s", name, name)
	}
	a, err := v.write(ctx, "store credentials", v.credentialPath("data", c), map[string]any{
		"options": map[string]any{"cas": version}, "data": map[string]any{valueField: is.Reveal()},
	})
	if client.KindOf(err) == client.Changed {
		return protocol.Errorf(protocol.CodeConflict, "the credential %q was stored anew, or deleted, meanwhile", name)
	}
	if err != nil {
		return err
	}
	next := version + 1
	if n, ok := a.Data["version"].(json.Number); ok {
		if i, err := n.Int64(); err == nil {
			next = i
		}
	}
	v.versions.note(c, is, next)
	return nil
}
