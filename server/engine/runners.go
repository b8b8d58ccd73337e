package engine

import (
	"cmp"
	"context"
	"slices"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/redact"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/execution"
	"bivouac/server/store"
)

// Enrolment is a join code in the hands of a new key.
type Enrolment struct {
	CodeHash   []byte // SHA-256 of the code's secret part
	Runner     protocol.RunnerID
	Name       string // empty: the code's
	PublicKey  []byte // DER, SubjectPublicKeyInfo
	Thumbprint string
}

// InvitationOf says whether EnrollRunner would take a code in the hands of this key,
// and for which tenant. It uses nothing up: whoever certifies the key first and enrols
// it then leaves neither a used code nor a runner behind when the certificate fails.
func (e *Engine) InvitationOf(ctx context.Context, p Enrolment) (protocol.TenantID, error) {
	var code execution.JoinCode
	err := e.cfg.Store.View(ctx, store.AsLoop("enroll"), func(tx *store.Tx) (err error) {
		if code, err = tx.JoinCodeFor(p.CodeHash, p.Thumbprint, p.Runner); err != nil || !code.UsedAt.IsZero() {
			return err
		}
		_, _, err = joining(tx, p, code)
		return err
	})
	return code.Tenant, err
}

// EnrollRunner uses a join code: runner row and the owner's binding in one
// transaction. The same code and key may repeat it. The caller has certified the key.
func (e *Engine) EnrollRunner(ctx context.Context, p Enrolment) (execution.Runner, error) {
	var r execution.Runner
	err := e.cfg.Store.Update(ctx, store.AsLoop("enroll"), func(tx *store.Tx) error {
		code, err := tx.JoinCode(p.CodeHash)
		if err != nil {
			return err
		}
		repeat := !code.UsedAt.IsZero()
		if err := tx.UseJoinCode(p.CodeHash, p.Thumbprint, p.Runner); err != nil {
			return err
		}
		if repeat {
			r, err = tx.Runner(p.Runner)
			return err
		}
		var known bool
		if r, known, err = joining(tx, p, code); err != nil || known {
			return err
		}
		if err := tx.InsertRunner(r); err != nil {
			return err
		}
		_, err = tx.PutBinding(execution.Binding{ID: newID[protocol.BindingKind](e, tx.Now), Tenant: r.Tenant,
			Principal: r.Owner, Runner: r.ID, Actions: bindingActions(code.Actions), CreatedAt: tx.Now})
		return err
	})
	if err == nil {
		e.cfg.Log.Info("runner enrolled", "runner", r.ID, "name", r.Name, "owner", r.Owner)
	}
	return r, err
}

// joining is the runner that a code makes of a key, or the one that the key is already.
func joining(tx *store.Tx, p Enrolment, code execution.JoinCode) (r execution.Runner, known bool, err error) {
	if r, err = tx.Runner(p.Runner); err == nil {
		return r, true, joinedAlready(r, code)
	} else if !notFound(err) {
		return r, false, err
	}
	r = execution.Runner{ID: p.Runner, Tenant: code.Tenant, Owner: code.Principal, Name: cmp.Or(p.Name, code.Name), Thumbprint: p.Thumbprint,
		PublicKey: p.PublicKey, State: execution.RunnerActive, EnrolledAt: tx.Now}
	return r, false, nameFree(tx, r.Owner, r.Name, "bivouac-edge join … --name OTHER")
}

// nameFree refuses a second machine of one name: commands mean machines by their names.
func nameFree(tx *store.Tx, owner protocol.PrincipalID, name, other string) error {
	if name == "" {
		return nil
	}
	all, err := tx.ActiveRunners()
	for _, r := range all {
		if r.Owner == owner && r.Name == name {
			return protocol.Errorf(protocol.CodeAlreadyExists,
				"there is a machine %q already, runner %s: choose another name (`%s`), or take the other one out first: `bivouac edge revoke %s`", name, r.ID, other, r.ID)
		}
	}
	return err
}

// bindingActions are the code's, with whole turns added; no list allows all that
// the machine's owner allows.
func bindingActions(actions []string) []string {
	if len(actions) == 0 || slices.Contains(actions, execution.ActionTurn) {
		return actions
	}
	return append(slices.Clone(actions), execution.ActionTurn)
}

// joinedAlready lets a machine that never left join again with its key, when the
// code is of the same owner. Otherwise both names are said.
func joinedAlready(r execution.Runner, code execution.JoinCode) error {
	if r.State == execution.RunnerActive && r.Owner == code.Principal {
		return nil
	}
	return protocol.Errorf(protocol.CodeAlreadyExists,
		"this machine's key is already runner %s (%q, %s): on the machine run bivouac-edge leave, then join with a new code", r.ID, r.Name, r.State)
}

// Connect takes the runner's connection row by compare-and-set, restarts its
// lease clocks and judges each lease that it holds. The transport fills in the
// broker's address.
func (e *Engine) Connect(ctx context.Context, c store.Caller, transport string, req *runnerv1.ConnectRequest) (*runnerv1.ConnectResponse, error) {
	version, err := protocol.Agree(req.OldestCapabilityVersion, req.CapabilityVersion)
	if err != nil {
		return nil, err
	}
	named, err := namedIn(req.Held)
	if err != nil {
		return nil, err
	}
	var n connecting
	err = e.cfg.Store.Update(ctx, store.AsLoop("connect"), func(tx *store.Tx) (err error) {
		n = connecting{e: e, tx: tx}
		return n.take(c, transport, req)
	})
	if isCopied(err) {
		e.noteCopy(ctx, c, req.Facts)
	}
	if protocol.CodeOf(err) == protocol.CodeOutcomeUnknown {
		n.tookRow()
		e.leases.forgetOf(c.Runner()) // the row may be ours by now, and these clocks are old
	}
	if err != nil {
		return nil, err
	}
	e.links.take(c.Runner(), n.row.Epoch, n.runner.Thumbprint, named)
	resp := &runnerv1.ConnectResponse{Epoch: n.row.Epoch, CapabilityVersion: version, MailboxCursor: n.runner.AckedSeq,
		ServerTimeUs: n.tx.Now.UnixMicro()}
	n.tookRow()
	for _, h := range n.alive {
		e.leases.start(h.attempt, h.turn.turn.Session, h.authority)
	}
	for _, l := range req.Held {
		resp.Leases = append(resp.Leases, e.verdict(n.alive, l))
	}
	e.cfg.Log.Info("runner connected", "runner", c.Runner(), "epoch", n.row.Epoch, "transport", transport, "leases", len(n.alive))
	return resp, nil
}

// connecting is one connect inside its transaction.
type connecting struct {
	e      *Engine
	tx     *store.Tx
	runner execution.Runner
	row    execution.Connection
	alive  []heldAttempt
	from   protocol.ReplicaID // had the row before
}

// tookRow says until when the replica that had the row may go on with the runner.
func (n *connecting) tookRow() {
	switch {
	case n.runner.ID.IsZero() || n.from == n.e.cfg.Replica:
	case n.from == "" || n.e.replicas.gone(n.from):
		n.e.leases.taken(n.runner.ID, 0)
	default:
		n.e.leases.taken(n.runner.ID, n.e.cfg.Limits.learnsWithin())
	}
}

type heldAttempt struct {
	attempt   execution.Attempt
	turn      *turnTx
	authority *authority
}

func (n *connecting) take(c store.Caller, transport string, req *runnerv1.ConnectRequest) error {
	r, err := n.tx.Runner(c.Runner())
	if err != nil || r.Tenant != c.Tenant() || r.State != execution.RunnerActive {
		return protocol.Errorf(protocol.CodeUnauthenticated, "runner %s is not enrolled here any more: join again with bivouac-edge join", c.Runner())
	}
	last, err := n.tx.Connection(r.ID)
	if err != nil && !notFound(err) {
		return err
	}
	if err := sole(r, last, req); err != nil {
		return err
	}
	n.row, err = n.tx.TakeConnection(execution.Connection{Runner: r.ID, Replica: n.e.cfg.Replica,
		Epoch: nextEpoch(last, req), BootNonce: takenBy(req), Transport: transport, TakenAt: n.tx.Now, ExpiresAt: n.tx.Now}, last.Epoch)
	if err != nil {
		return err
	}
	r.Facts, r.LastSeenAt = factsOf(r, req.Facts), n.tx.Now
	if err := n.tx.SaveRunner(r, r.State); err != nil {
		return err
	}
	n.runner, n.from = r, last.Replica
	return n.readHeld()
}

// readHeld finds the attempts that the runner holds by the store.
func (n *connecting) readHeld() error {
	attempts, err := n.tx.AttemptsOfRunner(n.runner.ID)
	if err != nil {
		return err
	}
	n.alive = nil
	for _, a := range attempts {
		if !a.State.Held() {
			continue
		}
		w, err := n.e.openAttempt(n.tx, a.ID)
		if err != nil {
			return err
		}
		auth, err := w.attemptAuthority(a)
		if isTaken(err) {
			continue // its work ends by its own tick
		} else if err != nil {
			return err
		}
		n.alive = append(n.alive, heldAttempt{a, w, auth})
	}
	return nil
}

// namedIn are the attempts that a runner says it holds.
func namedIn(held []*runnerv1.HeldLease) ([]protocol.AttemptID, error) {
	out := make([]protocol.AttemptID, len(held))
	for i, l := range held {
		id, err := protocol.ParseID[protocol.AttemptKind](l.AttemptId)
		if err != nil {
			return nil, err
		}
		out[i] = id
	}
	return out, nil
}

// verdict on one lease that a runner says it holds.
func (e *Engine) verdict(alive []heldAttempt, l *runnerv1.HeldLease) *runnerv1.LeaseVerdict {
	v := &runnerv1.LeaseVerdict{AttemptId: l.AttemptId}
	for _, h := range alive {
		if h.attempt.ID.String() != l.AttemptId || h.attempt.Fence != protocol.Fence(l.Fence) {
			continue
		}
		terms, err := e.heldTerms(heldAs(h.attempt, h.authority), h.attempt.ID)
		if err != nil {
			e.cfg.Log.Warn("held lease got no terms", "attempt", l.AttemptId, "error", err)
			return v
		}
		v.Alive, v.AcceptedSeq, v.Terms = true, h.attempt.AcceptedSeq, terms
	}
	return v
}

// factsOf are what a runner says of itself, with what we know of its copies. The
// listener has bounded it: see edge/protocol/facts. What may be a line of a log is
// redacted.
func factsOf(r execution.Runner, f *runnerv1.Facts) execution.Facts {
	var harnesses []execution.Harness
	for _, h := range f.GetHarnesses() {
		version, _ := redact.Text(h.GetVersion())
		harnesses = append(harnesses, execution.Harness{Name: h.GetName(), Version: version, Protocol: h.GetProtocol()})
	}
	problem, _ := redact.Text(f.GetSandboxProblem())
	return execution.Facts{Harnesses: harnesses, Host: hostName(f), Copy: r.Facts.Copy, NoBroker: r.Facts.NoBroker,
		OS: f.GetOs(), Arch: f.GetArch(), Version: f.GetVersion(), BootID: f.GetBootId(), Slots: int(f.GetSlots()),
		Boundary: f.GetBoundary(), Limits: f.GetLimits(), Actions: f.GetActions(), Toolchains: f.GetToolchains(),
		Adapters: f.GetAdapters(), Paused: f.GetPaused(), SandboxProblem: problem, RefusesEgress: f.GetRefusesEgress(),
		MaxActions: int(max(0, f.GetQuota().GetMaxActiveActions())), MaxTokensPerDay: max(0, f.GetQuota().GetMaxTokensPerDay()),
		SecondKeys: f.GetSecondKeys(), Allocations: f.GetAllocations(),
	}
}

// Announce records what the runner offers now.
func (e *Engine) Announce(ctx context.Context, c store.Caller, req *runnerv1.AnnounceRequest) error {
	if err := e.links.current(c.Runner(), req.Epoch); err != nil {
		return err
	}
	return e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error {
		r, err := tx.Runner(c.Runner())
		if err != nil {
			return err
		}
		r.Facts, r.LastSeenAt = factsOf(r, req.Facts), tx.Now
		return tx.SaveRunner(r, r.State)
	})
}

// attach leases the connection row from the first look into the mailbox on: only
// then is the runner there to take an offer.
func (e *Engine) attach(ctx context.Context, r protocol.RunnerID, epoch int64) error {
	if !e.links.arrive(r, epoch) {
		return nil
	}
	var lost []protocol.RunnerID
	err := e.cfg.Store.Update(ctx, store.AsLoop("attach"), func(tx *store.Tx) (err error) {
		lost, err = tx.RenewConnections(e.cfg.Replica, []protocol.RunnerID{r}, tx.Now.Add(e.cfg.Limits.ConnectionTTL))
		return err
	})
	if err == nil && len(lost) > 0 {
		e.links.drop(r, epoch)
		err = e.links.current(r, epoch)
	}
	return err
}

// Disconnect says that the transport of an epoch is gone. The row stays this
// replica's, and so do the clocks of its leases.
func (e *Engine) Disconnect(ctx context.Context, c store.Caller, epoch int64) error {
	if !e.links.leave(c.Runner(), epoch) {
		return nil // a later epoch is here
	}
	err := e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error {
		r, err := tx.Runner(c.Runner())
		if err != nil {
			return err
		}
		r.LastSeenAt = tx.Now
		if err := tx.SaveRunner(r, r.State); err != nil {
			return err
		}
		return tx.ReleaseConnection(c.Runner(), epoch)
	})
	if lostRace(err) {
		return nil
	}
	return err
}
