package engine

import (
	"errors"
	"fmt"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/capability"
	"bivouac/server/planted"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// authority is everything that the capabilities of one turn may say, as one
// transaction read it. INV-10.
type authority struct {
	turn       session.Turn
	snap       *policy.Snapshot
	tenant     string
	instance   protocol.InstanceID
	grant      protocol.GrantID // the turn's own, or the one that gives an action its credential
	credential string           // that it is to give; empty: none
	sealed     []byte
	slice      policy.Slice
	whole      bool   // all that is left of the budget is in the slice
	thumbprint string // of the runner that presents it; empty: the replica's
}

// authority reads what the turn stands on, and refuses when any of it was taken
// back. INV-13.
func (w *turnTx) authority() (*authority, error) {
	snap, err := w.snapshot()
	if err != nil {
		return nil, err
	}
	return readAuthority(w.tx, w.turn, snap)
}

func readAuthority(tx *store.Tx, t session.Turn, snap *policy.Snapshot) (*authority, error) {
	if err := standing(tx, t, snap); err != nil {
		return nil, err
	}
	a := &authority{turn: t, snap: snap}
	s, err := tx.Session(t.Session)
	if err != nil {
		return nil, err
	}
	a.instance = s.Instance
	tenant, err := tx.Tenant(t.Tenant)
	if err != nil {
		return nil, err
	}
	a.tenant = tenant.Name
	if snap.Grant != "" {
		g, err := tx.Grant(snap.Grant)
		if err != nil {
			return nil, err
		}
		a.grant, a.sealed = g.ID, g.Sealed
	}
	if t.Slice == "" { // it waits for a person: nothing may be spent under it
		return a, nil
	}
	a.slice, err = tx.Slice(t.Slice)
	return a, err
}

// taken says that authority was taken back: the work under it ends with reason.
type taken struct {
	reason  string
	message string
}

func (t *taken) Error() string { return t.message }

// By what authority is taken back. The store (standing) and this replica's floors
// (covers) say it in the same words.
var (
	principalDisabled = &taken{"principal_disabled", "The principal was disabled."}
	sessionRevoked    = &taken{"session_revoked", "The session was revoked."}
	sessionExpired    = &taken{"session_expired", "The session reached its maximum lifetime."}
	instanceRecreated = &taken{"instance_recreated", "The agent's instance was recreated: what ran under the earlier generation ended."}
	runnerRevoked     = &taken{"runner_revoked", "The runner was revoked."}
	workTakenOver     = &taken{"stale_fence", "Another took the work over."}
)

// grantRevoked says that of the grant that a turn stood on.
func grantRevoked(id protocol.GrantID) *taken {
	return &taken{reasonGrant, fmt.Sprintf("The grant %s, which the turn stood on, was revoked.", id)}
}

// turnTakenOver is a lost race and ends nothing: whoever holds the higher fence
// drives the turn on.
var turnTakenOver = protocol.Errorf(protocol.CodeStaleFence, "another took the turn over")

// Is makes it a refusal of permission for callers that only want the code.
func (t *taken) Is(target error) bool {
	e, ok := target.(*protocol.Error)
	return ok && e.Message == "" && e.Code == protocol.CodePermissionDenied
}

func isTaken(err error) bool {
	var t *taken
	return errors.As(err, &t)
}

// standing reads what a turn's authority rests on: principal, session, grant and
// generation. It is asked at activation, before every dispatch and for every
// mint. INV-13, INV-16.
func standing(tx *store.Tx, t session.Turn, snap *policy.Snapshot) error {
	p, err := tx.Principal(t.Principal)
	if err != nil {
		return err
	}
	if !p.DisabledAt.IsZero() && planted.Chosen != planted.Mint {
		return principalDisabled
	}
	s, err := tx.Session(t.Session)
	if err != nil {
		return err
	}
	if s.State == session.Revoked {
		return sessionRevoked
	}
	if s.State == session.Expired || s.Outlived(tx.Now) {
		return sessionExpired
	}
	if snap == nil {
		return nil
	}
	inst, err := tx.EnsureInstance(t.Tenant, t.Principal, s.Agent)
	if err != nil {
		return err
	}
	if inst.Generation != snap.Generation {
		return instanceRecreated
	}
	if snap.Grant == "" {
		return nil
	}
	g, err := tx.Grant(snap.Grant)
	if err != nil {
		return err
	}
	if !g.RevokedAt.IsZero() {
		return grantRevoked(g.ID)
	}
	return nil
}

// mint signs one capability. narrow sets what it is for: without it a capability
// allows nothing. INV-10, INV-13.
func (e *Engine) mint(a *authority, now time.Time, narrow func(c *capability.Claims)) (string, error) {
	c := capability.Claims{
		ID: newID[protocol.CapabilityKind](e, now), Audience: a.snap.BrokerPool,
		Tenant: a.turn.Tenant, TenantName: a.tenant, Principal: a.turn.Principal,
		Agent: a.snap.Agent.Name, AgentDigest: a.snap.AgentDigest, Instance: a.instance, Generation: a.snap.Generation,
		Session: a.turn.Session, Turn: a.turn.ID, Fence: a.turn.OwnerFence,
		Grant: a.grant, SealedGrant: a.sealed, Presenter: e.cfg.Thumbprint,
		Slice: a.slice.ID, SliceBoot: a.slice.BrokerBoot, SliceCeiling: a.slice.CeilingMicroUSD,
		PolicyDigest: a.snap.PolicyDigest, DataBoundary: a.snap.DataBoundary, TraceParent: traceOf(a.turn),
		IssuedAt: now, ExpiresAt: now.Add(e.cfg.Limits.CapabilityTTL), Deadline: a.turn.Deadline,
	}
	if a.thumbprint != "" {
		c.Presenter = a.thumbprint
	}
	narrow(&c)
	token, err := e.signUnder(a, c)
	e.minted(err)
	return token, err
}

// signUnder signs for an action's grant only while the turn's own stands, and says
// which of the two was taken back. INV-13.
func (e *Engine) signUnder(a *authority, c capability.Claims) (string, error) {
	own := a.snap.Grant
	if c.Grant == own {
		return e.signFor(c)
	}
	under := c
	under.Grant = own
	if t := e.floors.covers(under); t != nil {
		return "", t
	}
	if e.floors.revoked(c.Grant) {
		return "", &ungranted{c.Grant, a.snap.Agent.Name, a.credential}
	}
	return e.signFor(c)
}

func (e *Engine) signFor(c capability.Claims) (string, error) {
	if t := e.floors.covers(c); t != nil {
		return "", t
	}
	return e.cfg.Signer.Sign(c)
}

// forModel narrows a capability to the turn's model route.
func (a *authority) forModel(c *capability.Claims) { c.Models = []string{a.snap.Agent.Model.Route} }

// forAction narrows a capability to one gateway action and its arguments.
func forAction(act session.Action) func(c *capability.Claims) {
	return func(c *capability.Claims) {
		c.Action, c.ArgsDigest, c.Fence = act.ID, act.ArgumentsDigest, act.Fence
		c.Tools, c.Destinations = []string{act.Tool}, []string{act.Destination}
	}
}
