package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

var tenantByID = define(`SELECT id, name, created_at FROM tenants WHERE ($1 = '' OR id = $1) AND id = $2`)

// Tenant is the caller's own, or for internal callers any.
func (tx *Tx) Tenant(id protocol.TenantID) (policy.Tenant, error) {
	tenant, _ := tx.caller.self()
	return one(tx, "tenant", id, scanTenant, tenantByID, []any{tenant, id})
}
