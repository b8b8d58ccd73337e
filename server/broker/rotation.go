package broker

import (
	"context"
	"slices"
	"sync"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// maxRetired values of one credential are remembered: what it was, and with OAuth the
// refresh tokens and the secret behind it.
const maxRetired = 16

// retired remembers, in memory, what credentials were before they were set again:
// an upstream may still answer with an old value, and an answer is redacted of all
// of them. A flow in flight goes on with the value that it began with. INV-17.
type retired struct {
	mu     sync.Mutex                       // guards below
	values map[credentialKey][]secret.Value // newest use first, each once
}

type credentialKey struct {
	tenant protocol.TenantID
	name   string
}

func newRetired() *retired { return &retired{values: map[credentialKey][]secret.Value{}} }

// use notes the value with which a request goes out, and returns the others that
// the credential had.
func (r *retired) use(tenant protocol.TenantID, name string, v secret.Value) []secret.Value {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := credentialKey{tenant, name}
	others := slices.DeleteFunc(slices.Clone(r.values[key]), func(o secret.Value) bool { return o == v })
	others = others[:min(len(others), maxRetired)]
	r.values[key] = append([]secret.Value{v}, others...)
	return others
}

// retire notes a value that is about to be replaced or deleted, although perhaps
// no request of this start has used it.
func (b *Broker) retire(ctx context.Context, tenant protocol.TenantID, name string) {
	if v, err := b.ports.Authority.RouteKey(ctx, tenant, name); err == nil && !v.IsZero() {
		b.retired.use(tenant, name, v)
	}
}
