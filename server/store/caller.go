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

// complete refuses a caller that names nobody: an empty tenant or principal in a
// filter would be everybody's. INV-9.
func (c Caller) complete() error {
	switch {
	case c.kind == callerPrincipal && !c.tenant.IsZero() && !c.principal.IsZero():
	case c.kind == callerRunner && !c.tenant.IsZero() && !c.runner.IsZero():
	case c.Internal() && c.name != "":
	default:
		return fmt.Errorf("store: the caller %q is incomplete: it names no tenant, no identity or no reason", c)
	}
	return nil
}

// self is the caller's id in its tenant; principal and runner ids never equal
// each other. Both are empty for internal callers, which no row is hidden from.
func (c Caller) self() (tenant, id string) {
	switch c.kind {
	case callerPrincipal:
		return c.tenant.String(), c.principal.String()
	case callerRunner:
		return c.tenant.String(), c.runner.String()
	}
	return "", ""
}

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
