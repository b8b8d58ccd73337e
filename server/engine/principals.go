package engine

import (
	"context"
	"crypto/rand"
	"regexp"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/policy"
	"bivouac/server/store"
)

var (
	principalName = regexp.MustCompile(`^[a-z0-9][a-z0-9._@-]{0,62}$`)
	tenantName    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,30}$`)
)

// NewPrincipal is a user or a service to be made.
type NewPrincipal struct {
	// Tenant by name; empty: the caller's.
	Tenant string
	Name   string
	Kind   string // policy.SubjectUser or SubjectService; empty: a user
	Admin  bool
	// TokenHash is all that is kept of its bearer token.
	TokenHash []byte
}

func (n *NewPrincipal) check() error {
	if n.Kind == "" {
		n.Kind = string(policy.SubjectUser)
	}
	switch {
	case !principalName.MatchString(n.Name):
		return protocol.Errorf(protocol.CodeInvalidArgument,
			"a principal's name has 1 to 63 lower-case letters, digits and . _ @ -, and begins with a letter or digit; %q is none", n.Name)
	case !tenantName.MatchString(n.Tenant):
		return protocol.Errorf(protocol.CodeInvalidArgument,
			"a tenant's name has 1 to 31 lower-case letters, digits and hyphens, and begins with a letter or digit; %q is none", n.Tenant)
	case n.Kind != string(policy.SubjectUser) && n.Kind != string(policy.SubjectService):
		return protocol.Errorf(protocol.CodeInvalidArgument, "kind %q is unknown: it is %q or %q", n.Kind, policy.SubjectUser, policy.SubjectService)
	}
	return nil
}

// AddPrincipal makes a principal: an admin in its own tenant, the operator in any,
// which is made when it is absent. INV-9.
func (e *Engine) AddPrincipal(ctx context.Context, c store.Caller, n NewPrincipal) (policy.Principal, policy.Tenant, error) {
	if !c.Internal() {
		var err error
		if c, err = e.addingTo(ctx, c, &n.Tenant); err != nil {
			return policy.Principal{}, policy.Tenant{}, err
		}
	}
	now := time.Now()
	return addPrincipal(ctx, e.cfg.Store, c, n, policy.Principal{ID: newID[protocol.PrincipalKind](e, now)})
}

// addingTo is the caller as which one may add to a tenant, by default its own.
func (e *Engine) addingTo(ctx context.Context, c store.Caller, tenant *string) (store.Caller, error) {
	to := c
	err := e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		if err := managesTenant(tx, "add principals"); err != nil {
			return err
		}
		by, own, err := self(tx)
		if err != nil {
			return err
		}
		switch {
		case *tenant == "" || *tenant == own.Name:
			*tenant = own.Name
		case by.Operator:
			to = store.AsOperator("principal add by " + by.ID.String())
		default:
			return protocol.Errorf(protocol.CodePermissionDenied,
				"%s may add principals to %s alone: only the operator that bivouac-server bootstrap made may name another tenant", by.Name, own.Name)
		}
		return nil
	})
	return to, err
}

// AddOperator makes an admin that may also make tenants. Only who has the machine
// in hand may: it needs the open store, before there is a server.
func AddOperator(ctx context.Context, s *store.Store, n NewPrincipal) (policy.Principal, error) {
	n.Admin = true
	p, _, err := addPrincipal(ctx, s, store.AsOperator("bootstrap"), n,
		policy.Principal{ID: protocol.NewID[protocol.PrincipalKind](time.Now(), rand.Reader), Operator: true})
	return p, err
}

func addPrincipal(ctx context.Context, s *store.Store, c store.Caller, n NewPrincipal, p policy.Principal) (_ policy.Principal, t policy.Tenant, err error) {
	if err := n.check(); err != nil {
		return p, t, err
	}
	p.Name, p.Kind, p.Admin, p.TokenHash = n.Name, n.Kind, n.Admin, n.TokenHash
	err = s.Update(ctx, c, func(tx *store.Tx) (err error) {
		t = policy.Tenant{ID: c.Tenant(), Name: n.Tenant}
		if c.Internal() {
			if t, err = tx.EnsureTenant(n.Tenant); err != nil {
				return err
			}
		}
		p.Tenant, p.CreatedAt = t.ID, tx.Now
		return tx.InsertPrincipal(p)
	})
	return p, t, err
}

// managesTenant refuses a principal that is no admin. Internal callers have the
// machine in hand.
func managesTenant(tx *store.Tx, what string) error {
	if tx.Caller().Admin() || tx.Caller().Internal() {
		return nil
	}
	by, own, err := self(tx)
	if err != nil {
		return err
	}
	return protocol.Errorf(protocol.CodePermissionDenied,
		"%s may not %s: only an admin of %s may; ask one, or log in as one with bivouac login URL --token-file FILE", by.Name, what, own.Name)
}

// self is the principal that calls, with its tenant.
func self(tx *store.Tx) (p policy.Principal, t policy.Tenant, err error) {
	if p, err = tx.Principal(tx.Caller().Principal()); err != nil {
		return p, t, err
	}
	t, err = tx.Tenant(p.Tenant)
	return p, t, err
}
