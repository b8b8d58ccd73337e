package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

// EnsureTenant returns the tenant of that name and makes it when absent. Internal callers only.
func (tx *Tx) EnsureTenant(name string) (policy.Tenant, error) {
	panic("store: not built")
}

// InsertPrincipal stores a new principal; its name is unique in the tenant.
func (tx *Tx) InsertPrincipal(p policy.Principal) error {
	panic("store: not built")
}

// PrincipalByToken finds who holds a token, by its SHA-256. Disabled ones are not found.
func (tx *Tx) PrincipalByToken(hash []byte) (policy.Principal, policy.Tenant, error) {
	panic("store: not built")
}

func (tx *Tx) Principal(id protocol.PrincipalID) (policy.Principal, error) {
	panic("store: not built")
}

func (tx *Tx) PrincipalByName(tenant protocol.TenantID, name string) (policy.Principal, error) {
	panic("store: not built")
}

func (tx *Tx) Principals() ([]policy.Principal, error) {
	panic("store: not built")
}

// DisablePrincipal ends its authority; the caller adds the floor.
func (tx *Tx) DisablePrincipal(id protocol.PrincipalID) error {
	panic("store: not built")
}
