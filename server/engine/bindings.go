package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// NewBinding lets a principal use a machine for some actions.
type NewBinding struct {
	Runner protocol.RunnerID
	// Principal by id or by name.
	Principal string
	Actions   []string // at least one
}

// PutBinding makes or changes a binding. A machine's owner and an admin may; who
// may be bound is who they can see, and another tenant's cannot be seen. INV-9.
func (e *Engine) PutBinding(ctx context.Context, c store.Caller, n NewBinding) (b execution.Binding, p policy.Principal, err error) {
	if err := checkBindable(n.Actions); err != nil {
		return b, p, err
	}
	if len(n.Actions) == 0 {
		return b, p, protocol.Errorf(protocol.CodeInvalidArgument, "a binding names at least one action of %v: give --action", bindable)
	}
	err = e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error {
		r, err := tx.Runner(n.Runner)
		if err != nil {
			return err
		}
		if err := ownerOrAdmin(c, r, "bound"); err != nil {
			return err
		}
		if p, err = tx.Principal(protocol.PrincipalID(n.Principal)); notFound(err) {
			p, err = tx.PrincipalByName(r.Tenant, n.Principal)
		}
		if err != nil {
			return err
		}
		b, err = tx.PutBinding(execution.Binding{ID: newID[protocol.BindingKind](e, tx.Now), Tenant: r.Tenant,
			Principal: p.ID, Runner: r.ID, Actions: n.Actions, CreatedAt: tx.Now})
		return err
	})
	return b, p, err
}

// DeleteBinding ends a binding. Its principal may give it up, too: whoever can see
// it may end it.
func (e *Engine) DeleteBinding(ctx context.Context, c store.Caller, id protocol.BindingID) error {
	return e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error { return tx.RemoveBinding(id) })
}

// ownerOrAdmin is who disposes of a machine from the server.
func ownerOrAdmin(c store.Caller, r execution.Runner, what string) error {
	if c.Principal() == r.Owner || c.Admin() {
		return nil
	}
	return protocol.Errorf(protocol.CodePermissionDenied, "runner %q can be %s by its owner or an admin: ask one", r.Name, what)
}
