package store

import (
	"bivouac/edge/protocol"
	"bivouac/server/policy"
)

// PutDefinition stores a version; the same digest as the current one changes nothing.
func (tx *Tx) PutDefinition(d policy.Definition) (stored policy.Definition, changed bool, err error) {
	panic("store: not built")
}

// Definition returns one version, or the current one when digest is empty.
func (tx *Tx) Definition(tenant protocol.TenantID, name, digest string) (policy.Definition, error) {
	panic("store: not built")
}

// Definitions returns the current version of every agent of the caller's tenant.
func (tx *Tx) Definitions() ([]policy.Definition, error) {
	panic("store: not built")
}

// EnsureInstance returns the one instance of (tenant, principal, agent).
func (tx *Tx) EnsureInstance(tenant protocol.TenantID, principal protocol.PrincipalID, agent string) (policy.Instance, error) {
	panic("store: not built")
}

// RaiseGeneration makes every earlier generation's capabilities void; the caller adds the floor. INV-16.
func (tx *Tx) RaiseGeneration(id protocol.InstanceID) (policy.Instance, error) {
	panic("store: not built")
}
