package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

var tenantKnown = define(`SELECT id, name, created_at FROM tenants WHERE id = $1 OR name = $1`)

// TenantKnown reports whether there is a tenant of an id or a name. Internal callers only.
func (tx *Tx) TenantKnown(idOrName string) (bool, error) {
	if err := tx.internal("looking for tenants"); err != nil {
		return false, err
	}
	_, err := first(tx, scanTenant, tenantKnown, []any{idOrName})
	if err == errNoRow {
		return false, nil
	}
	return err == nil, err
}

var tenantByID = define(`SELECT id, name, created_at FROM tenants WHERE ($1 = '' OR id = $1) AND id = $2`)

// Tenant is the caller's own, or for internal callers any.
func (tx *Tx) Tenant(id protocol.TenantID) (policy.Tenant, error) {
	tenant, _ := tx.caller.self()
	return one(tx, "tenant", id, scanTenant, tenantByID, []any{tenant, id})
}
