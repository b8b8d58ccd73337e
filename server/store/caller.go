package store

import (
	"fmt"

	"bivouac/edge/protocol"
)

// Caller is who asks. It is a parameter of every method, never a context value,
// and it decides which rows exist for the method. INV-9.
type Caller struct {
	kind      callerKind
	tenant    protocol.TenantID
	principal protocol.PrincipalID
	runner    protocol.RunnerID
	admin     bool
	name      string
}

type callerKind uint8

const (
	callerNone callerKind = iota
	callerPrincipal
	callerRunner
	callerLoop
	callerOperator
)

// AsPrincipal sees its own rows, and with admin the management rows of its
// tenant. Conversations of others stay invisible to an admin.
func AsPrincipal(tenant protocol.TenantID, principal protocol.PrincipalID, admin bool) Caller {
	return Caller{kind: callerPrincipal, tenant: tenant, principal: principal, admin: admin}
}

// AsRunner sees attempts that were offered to or claimed by it, and its mailbox.
func AsRunner(tenant protocol.TenantID, runner protocol.RunnerID) Caller {
	return Caller{kind: callerRunner, tenant: tenant, runner: runner}
}

// AsLoop is a tick of the engine, by name; it sees all tenants.
func AsLoop(name string) Caller { return Caller{kind: callerLoop, name: name} }

// AsOperator is a person with the machine in hand, with a reason that is kept.
func AsOperator(reason string) Caller { return Caller{kind: callerOperator, name: reason} }

// Tenant of a principal or runner.
func (c Caller) Tenant() protocol.TenantID { return c.tenant }

// Principal of a principal caller.
func (c Caller) Principal() protocol.PrincipalID { return c.principal }

// Runner of a runner caller.
func (c Caller) Runner() protocol.RunnerID { return c.runner }

// Admin reports a principal that manages its tenant.
func (c Caller) Admin() bool { return c.kind == callerPrincipal && c.admin }

// Internal reports the engine's own loops and operators, which see all tenants.
func (c Caller) Internal() bool { return c.kind == callerLoop || c.kind == callerOperator }

func (c Caller) String() string {
	switch c.kind {
	case callerPrincipal:
		return "principal " + c.principal.String()
	case callerRunner:
		return "runner " + c.runner.String()
	case callerLoop:
		return "loop " + c.name
	case callerOperator:
		return fmt.Sprintf("operator (%s)", c.name)
	}
	return "nobody"
}
