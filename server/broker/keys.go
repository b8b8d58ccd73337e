package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/provider"
)

// keyless remembers, by route and tenant, that the last call failed for its key. A good
// call ends that, and so does a new key. It is memory of this start: the call log has the rest.
type keyless struct {
	mu   sync.Mutex
	last map[routeTenant]keyFault
}

type routeTenant struct {
	route  string
	tenant protocol.TenantID // that asked
}

// keyFault is why a call had no key that its provider takes.
type keyFault struct {
	tenantName string
	missing    bool // the tenant has none; otherwise the provider refused it
	why        string
	at         time.Time
}

// keyFaultLife is how long a fault is told without another call: a tenant that asks no
// more is no problem.
const keyFaultLife = 24 * time.Hour

func newKeyless() *keyless { return &keyless{last: map[routeTenant]keyFault{}} }

// note how a call that had its key ended. What says nothing about the key changes nothing.
func (k *keyless) note(r *request, err error) {
	var f *provider.Failure
	switch {
	case err == nil:
		k.good(r.model, r.claims.Tenant)
	case errors.As(err, &f) && f.Stage == provider.Refused && (f.Status == http.StatusUnauthorized || f.Status == http.StatusForbidden):
		k.bad(r, keyFault{why: err.Error()})
	}
}

// lacked notes a call that found no key.
func (k *keyless) lacked(r *request, err error) {
	if protocol.CodeOf(err) == protocol.CodeFailedPrecondition {
		k.bad(r, keyFault{why: err.Error(), missing: true})
	}
}

func (k *keyless) bad(r *request, f keyFault) {
	f.tenantName, f.at = r.claims.TenantName, time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last[routeTenant{r.model, r.claims.Tenant}] = f
}

func (k *keyless) good(route string, tenant protocol.TenantID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.last, routeTenant{route, tenant})
}

// stored forgets what failed for the key that was replaced: the new one was not tried.
func (k *keyless) stored(routes map[string]*route, owner protocol.TenantID, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for at := range k.last {
		if rt := routes[at.route]; rt != nil && rt.cfg.Credential == name && rt.keyOwner(at.tenant) == owner {
			delete(k.last, at)
		}
	}
}

// faults of a route, the oldest first.
func (k *keyless) faults(route string) (out []keyFault, of []protocol.TenantID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for at, f := range k.last {
		switch {
		case time.Since(f.at) > keyFaultLife:
			delete(k.last, at)
		case at.route == route:
			of = append(of, at.tenant)
		}
	}
	slices.SortFunc(of, func(a, b protocol.TenantID) int {
		fa, fb := k.last[routeTenant{route, a}], k.last[routeTenant{route, b}]
		return cmp.Or(fa.at.Compare(fb.at), strings.Compare(a.String(), b.String()))
	})
	for _, t := range of {
		out = append(out, k.last[routeTenant{route, t}])
	}
	return out, of
}

// keyOwner is the tenant whose credential a call of the route uses.
func (r *route) keyOwner(asks protocol.TenantID) protocol.TenantID {
	if r.cfg.CredentialTenant != "" {
		return protocol.TenantID(r.cfg.CredentialTenant)
	}
	return asks
}

// examineKeys says which routes have no key that their provider takes, as far as names
// of credentials and the last calls tell: no credential is read, and none is tried.
func (b *Broker) examineKeys(ctx context.Context, r *finding.Report) {
	for _, m := range b.cfg.Models {
		rt, check := b.routes[m.Name], "key."+m.Name
		mend := "bivouac credential set " + m.Credential
		if m.Credential == "" {
			mend = fmt.Sprintf("name a credential in model %q of broker.hcl, store it with bivouac credential set, and restart the broker", m.Name)
		}
		if m.CredentialTenant != "" {
			mend += "  (as an admin of the tenant " + m.CredentialTenant + ")"
			if m.Credential != "" && b.lacks(ctx, rt.keyOwner(""), m.Credential) {
				r.Bad(check, fmt.Sprintf("the tenant %s, whose key the route uses, has no credential %q", m.CredentialTenant, m.Credential), "every call of the route fails", mend)
				continue
			}
		}
		faults, of := b.keyless.faults(m.Name)
		var said []string
		for i, f := range faults {
			if f.missing && !b.lacks(ctx, rt.keyOwner(of[i]), m.Credential) {
				continue // it was stored since
			}
			said = append(said, fmt.Sprintf("the last call of tenant %s failed at %s: %s", cmp.Or(f.tenantName, of[i].String()), f.at.UTC().Format(time.RFC3339), f.why))
		}
		if more := len(said) - maxKeyFaults; more > 0 {
			said = append(said[more:], fmt.Sprintf("and so did those of %d more tenant(s)", more))
		}
		if len(said) > 0 {
			r.Bad(check, strings.Join(said, "\n"), "turns of these tenants that call the route fail", mend)
		}
	}
}

// maxKeyFaults are told of one route, the newest.
const maxKeyFaults = 3

// lacks is true where the authority says that a tenant has no such credential. One
// that cannot be asked has a finding of its own.
func (b *Broker) lacks(ctx context.Context, tenant protocol.TenantID, name string) bool {
	return protocol.CodeOf(b.stored(ctx, tenant, name)) == protocol.CodeFailedPrecondition
}
