package policy

import (
	"time"

	"bivouac/edge/protocol"
)

// Tenant is a closed world: nothing crosses it.
type Tenant struct {
	ID        protocol.TenantID
	Name      string
	CreatedAt time.Time
}

// Principal is a user or a service of one tenant.
type Principal struct {
	ID     protocol.PrincipalID
	Tenant protocol.TenantID
	Name   string
	Kind   string // SubjectUser or SubjectService
	// Admin may manage agents, principals, runners, grants and credentials of
	// its tenant; Operator may also make tenants.
	Admin      bool
	Operator   bool
	TokenHash  []byte
	CreatedAt  time.Time
	DisabledAt time.Time
}

// Instance is one agent for one principal: durable identity and generation.
type Instance struct {
	ID         protocol.InstanceID
	Tenant     protocol.TenantID
	Principal  protocol.PrincipalID
	Agent      string
	Generation int64
	CreatedAt  time.Time
}
