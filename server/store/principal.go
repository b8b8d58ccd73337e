package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

var (
	tenantByName = define(`SELECT id, name, created_at FROM tenants WHERE name = $1`)
	insertTenant = define(`INSERT INTO tenants (id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`)
)

// EnsureTenant returns the tenant of that name and makes it when absent. Internal callers only.
func (tx *Tx) EnsureTenant(name string) (policy.Tenant, error) {
	if err := tx.internal("making a tenant"); err != nil {
		return policy.Tenant{}, err
	}
	if name == "" {
		return policy.Tenant{}, protocol.Errorf(protocol.CodeInvalidArgument, "a tenant needs a name")
	}
	t, err := first(tx, scanTenant, tenantByName, []any{name})
	if err != errNoRow {
		return t, err
	}
	t = policy.Tenant{ID: newID[protocol.TenantID](tx), Name: name, CreatedAt: tx.Now}
	_, err = tx.exec(insertTenant, t.ID, t.Name, t.CreatedAt)
	return t, err
}

func scanTenant(r scanner) (t policy.Tenant, err error) {
	err = r.Scan(&t.ID, &t.Name, at(&t.CreatedAt))
	return t, err
}

const principalColumns = `p.id, p.tenant, p.name, p.kind, p.admin, p.operator, p.token_hash, p.created_at, p.disabled_at`

func principalFields(p *policy.Principal) []any {
	return []any{&p.ID, &p.Tenant, &p.Name, &p.Kind, flag(&p.Admin), flag(&p.Operator),
		blob(&p.TokenHash), at(&p.CreatedAt), at(&p.DisabledAt)}
}

func scanPrincipal(r scanner) (p policy.Principal, err error) {
	err = r.Scan(principalFields(&p)...)
	return p, err
}

var insertPrincipal = define(`INSERT INTO principals
	(id, tenant, name, kind, admin, operator, token_hash, created_at, disabled_at)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING`)

// InsertPrincipal stores a new principal; its name is unique in the tenant.
func (tx *Tx) InsertPrincipal(p policy.Principal) error {
	if err := tx.administers("making a principal", p.Tenant); err != nil {
		return err
	}
	n, err := tx.exec(insertPrincipal, p.ID, p.Tenant, p.Name, p.Kind, p.Admin, p.Operator,
		p.TokenHash, p.CreatedAt, p.DisabledAt)
	if err == nil && n == 0 {
		return protocol.Errorf(protocol.CodeAlreadyExists, "principal %q exists already in this tenant: choose another name", p.Name)
	}
	return err
}

var principalByToken = define(`SELECT ` + principalColumns + `, t.id, t.name, t.created_at
	FROM principals p JOIN tenants t ON t.id = p.tenant
	WHERE ($1 = '' OR (p.tenant = $1 AND p.id = $2)) AND p.token_hash = $3 AND p.disabled_at = 0 AND length(p.token_hash) > 0`)

// PrincipalByToken finds who holds a token, by its SHA-256. Disabled ones are not found.
func (tx *Tx) PrincipalByToken(hash []byte) (policy.Principal, policy.Tenant, error) {
	type holder struct {
		p policy.Principal
		t policy.Tenant
	}
	h, err := first(tx, func(r scanner) (h holder, err error) {
		err = r.Scan(append(principalFields(&h.p), &h.t.ID, &h.t.Name, at(&h.t.CreatedAt))...)
		return h, err
	}, principalByToken, tx.mine(hash))
	if err == errNoRow {
		err = protocol.Errorf(protocol.CodeNotFound, "no principal holds this token")
	}
	return h.p, h.t, err
}

// visiblePrincipal shows a principal to itself and to an admin of its tenant.
const visiblePrincipal = `($1 = '' OR (p.tenant = $1 AND (p.id = $2 OR $3 = 1)))`

var (
	principalByID = define(`SELECT ` + principalColumns + ` FROM principals p
		WHERE ` + visiblePrincipal + ` AND p.id = $4`)
	principalByName = define(`SELECT ` + principalColumns + ` FROM principals p
		WHERE ` + visiblePrincipal + ` AND p.tenant = $4 AND p.name = $5`)
	principalsOf = define(`SELECT ` + principalColumns + ` FROM principals p
		WHERE ` + visiblePrincipal + ` ORDER BY p.tenant, p.name`)
	disablePrincipal = define(`UPDATE principals SET disabled_at = $1 WHERE id = $2 AND disabled_at = 0`)
)

func (tx *Tx) Principal(id protocol.PrincipalID) (policy.Principal, error) {
	return one(tx, "principal", id, scanPrincipal, principalByID, tx.managing(id))
}

func (tx *Tx) PrincipalByName(tenant protocol.TenantID, name string) (policy.Principal, error) {
	return one(tx, "principal", name, scanPrincipal, principalByName, tx.managing(tenant, name))
}

func (tx *Tx) Principals() ([]policy.Principal, error) {
	return list(tx, scanPrincipal, principalsOf, tx.managing())
}

// DisablePrincipal ends its authority; the caller adds the floor.
func (tx *Tx) DisablePrincipal(id protocol.PrincipalID) error {
	p, err := tx.Principal(id)
	if err != nil {
		return err
	}
	if err := tx.administers("disabling a principal", p.Tenant); err != nil {
		return err
	}
	_, err = tx.exec(disablePrincipal, tx.Now, id)
	return err
}
