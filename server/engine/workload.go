package engine

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// WorkloadEnrolment is a new key in the hands of a machine that another scheduler has
// signed for. Who calls has proven that word, and configuration says whose machine it is.
type WorkloadEnrolment struct {
	Workload   string // one machine each: namespace, job and node
	Tenant     protocol.TenantID
	Principal  string   // by id or name
	Actions    []string // that the owner is bound for; empty: all that the machine allows
	Runner     protocol.RunnerID
	Name       string
	PublicKey  []byte // DER, SubjectPublicKeyInfo
	Thumbprint string
}

// MayEnrollWorkload says whether EnrollWorkload would take this key. It changes nothing.
func (e *Engine) MayEnrollWorkload(ctx context.Context, w WorkloadEnrolment) error {
	return e.cfg.Store.View(ctx, store.AsLoop("enroll"), func(tx *store.Tx) error {
		_, _, err := w.joining(tx)
		return err
	})
}

// EnrollWorkload makes a runner of it: row and the owner's binding in one transaction.
// The same key may repeat it; another key of the same node is refused. The caller has
// certified the key.
func (e *Engine) EnrollWorkload(ctx context.Context, w WorkloadEnrolment) (execution.Runner, error) {
	var r execution.Runner
	var known bool
	err := e.cfg.Store.Update(ctx, store.AsLoop("enroll"), func(tx *store.Tx) (err error) {
		if r, known, err = w.joining(tx); err != nil || known {
			return err
		}
		if err := tx.InsertRunner(r); err != nil {
			return err
		}
		_, err = tx.PutBinding(execution.Binding{ID: newID[protocol.BindingKind](e, tx.Now), Tenant: r.Tenant,
			Principal: r.Owner, Runner: r.ID, Actions: bindingActions(w.Actions), CreatedAt: tx.Now})
		return err
	})
	if err == nil && !known {
		e.cfg.Log.Info("runner enrolled by its workload identity", "runner", r.ID, "name", r.Name, "owner", r.Owner, "workload", r.Workload)
	}
	return r, err
}

// joining is the runner that a workload makes of a key, or the one that the key is already.
func (w WorkloadEnrolment) joining(tx *store.Tx) (r execution.Runner, known bool, err error) {
	owner, err := w.owner(tx)
	if err != nil {
		return r, false, err
	}
	r, err = tx.Runner(w.Runner)
	switch {
	case err == nil && r.State == execution.RunnerActive && r.Workload == w.Workload && r.Owner == owner.ID:
		return r, true, nil
	case err == nil:
		return r, false, protocol.Errorf(protocol.CodeAlreadyExists,
			"this machine's key is already runner %s (%q, %s): on the machine run bivouac-edge leave --force, which makes a new key, then start its job again", r.ID, r.Name, r.State)
	case !notFound(err):
		return r, false, err
	}
	if err := w.free(tx); err != nil {
		return r, false, err
	}
	if !principalName.MatchString(w.Name) {
		return r, false, protocol.Errorf(protocol.CodeInvalidArgument, "a machine's name has 1 to 63 lower-case letters, digits and . _ @ -; %q is none: give another with --enrol-name", w.Name)
	}
	r = execution.Runner{ID: w.Runner, Tenant: owner.Tenant, Owner: owner.ID, Name: w.Name, Thumbprint: w.Thumbprint,
		PublicKey: w.PublicKey, State: execution.RunnerActive, EnrolledAt: tx.Now, Workload: w.Workload}
	return r, false, nameFree(tx, r.Owner, r.Name, "bivouac-edge run … --enrol-name OTHER")
}

// owner of the machines, as server.hcl names it.
func (w WorkloadEnrolment) owner(tx *store.Tx) (p policy.Principal, err error) {
	if p, err = tx.Principal(protocol.PrincipalID(w.Principal)); notFound(err) {
		p, err = tx.PrincipalByName(w.Tenant, w.Principal)
	}
	switch {
	case notFound(err) || err == nil && p.Tenant != w.Tenant:
		return p, protocol.Errorf(protocol.CodeFailedPrecondition,
			"server.hcl gives the machines of this job to %q of tenant %s, and there is no such principal: `bivouac principal add`, or correct enrol in server.hcl", w.Principal, w.Tenant)
	case err == nil && !p.DisabledAt.IsZero():
		return p, protocol.Errorf(protocol.CodeFailedPrecondition, "server.hcl gives the machines of this job to %q, who was disabled: name another principal in enrol", p.Name)
	}
	return p, err
}

// free refuses a second key for one node. One that was revoked keeps its node: what
// runs there would be back within seconds.
func (w WorkloadEnrolment) free(tx *store.Tx) error {
	has, err := tx.RunnerOfWorkload(w.Workload)
	switch {
	case notFound(err):
		return nil
	case err != nil:
		return err
	case has.State == execution.RunnerActive:
		return protocol.Errorf(protocol.CodeAlreadyExists,
			"its node is already runner %s (%s) with another key (%s): if that key is lost, `bivouac edge revoke %s --free-node` lets this one have the node", has.ID, has.Name, w.Workload, has.ID)
	}
	return protocol.Errorf(protocol.CodePermissionDenied,
		"the runner %s (%s) of its node was revoked, and nobody has let the node come back (%s): `bivouac edge revoke %s --free-node` does", has.ID, has.Name, w.Workload, has.ID)
}

// FreeNode lets another key enrol for the node of a machine that has ended. Its owner and
// an admin may.
func (e *Engine) FreeNode(ctx context.Context, c store.Caller, id protocol.RunnerID) error {
	err := e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error { return tx.FreeWorkload(id) })
	if err == nil {
		e.cfg.Log.Info("node freed", "runner", id)
	}
	return err
}
