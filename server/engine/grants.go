package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/policy"
	"bivouac/server/store"
)

// NewGrant asks for authority of the caller to an agent.
type NewGrant struct {
	Agent       string
	Credentials []string
}

// Layer is one place where authority lived, probed after a revocation.
type Layer struct {
	Name   string        `json:"name"`
	Probe  string        `json:"probe"`
	Gone   bool          `json:"gone"`
	Detail string        `json:"detail,omitempty"`
	Took   time.Duration `json:"took_ns"` // from the begin of the revocation
}

// Revocation is the whole answer to "revoke": every layer, and the receipt.
type Revocation struct {
	Grant   policy.Grant
	Layers  []Layer
	Ended   Ended
	Receipt string // JWS by the broker's receipt key; empty while it is unreachable
	// Before: it was revoked already, at Grant.RevokedAt; the layers were probed again.
	Before bool
}

// CreateGrant makes a grant, has the broker seal it, and stores it. What the
// server keeps is ciphertext that only the broker opens.
func (e *Engine) CreateGrant(ctx context.Context, c store.Caller, p NewGrant) (policy.Grant, error) {
	err := e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		_, _, err := e.definition(tx, c.Tenant(), p.Agent, "")
		return err
	})
	if err != nil {
		return policy.Grant{}, err
	}
	g := policy.Grant{ID: newID[protocol.GrantKind](e, time.Now()), Tenant: c.Tenant(), Principal: c.Principal(),
		Agent: p.Agent, Credentials: p.Credentials}
	g.Sealed, err = e.cfg.Broker.CreateGrant(ctx, &brokerv1.CreateGrantRequest{GrantId: g.ID.String(), TenantId: g.Tenant.String(),
		PrincipalId: g.Principal.String(), Agent: g.Agent, Credentials: g.Credentials})
	if err != nil {
		return policy.Grant{}, err
	}
	err = e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error {
		g.CreatedAt = tx.Now
		return tx.InsertGrant(g)
	})
	return g, err
}

// grantsFor are the grants under which an agent works for a principal, the newest
// first. An agent that was never given one works without credentials; one whose
// grants were all taken back does not work until it is given another.
func grantsFor(tx *store.Tx, p protocol.PrincipalID, agent string) ([]policy.Grant, error) {
	all, err := tx.GrantsInForce(p, agent)
	if err != nil || len(all) > 0 {
		return all, err
	}
	g, err := tx.StandingGrant(p, agent)
	switch {
	case notFound(err):
		return nil, nil
	case err == nil && !g.RevokedAt.IsZero():
		return nil, protocol.Errorf(protocol.CodePolicyDenied,
			"the grant %s of agent %s was revoked: give it a new one with bivouac grant create --agent %s", g.ID, agent, agent)
	}
	return all, err
}

// RevokeGrant ends a grant and all work that stands on it, in every layer, and says
// per layer what the probe found and when. Work under another grant goes on. INV-13.
func (e *Engine) RevokeGrant(ctx context.Context, c store.Caller, id protocol.GrantID, reason string) (Revocation, error) {
	return (&revoking{e: e, begun: time.Now(), id: id, reason: reason}).run(ctx, c)
}

// EndedGrant is a grant that ended where the broker's authority holds it, as the
// broker saw it.
type EndedGrant struct {
	ID   protocol.GrantID
	Seen time.Time
	How  string
}

// GrantEnded ends here what ended at the authority, with a receipt that is kept:
// nobody waits for the answer. settled says that the server has it as revoked, and a
// receipt that shows every layer gone; a grant that it does not know may be about to be
// stored, and is to be told again, as is one of which something is left.
func (e *Engine) GrantEnded(ctx context.Context, g EndedGrant) (settled bool, err error) {
	var known policy.Grant
	err = e.cfg.Store.View(ctx, store.AsLoop("authority"), func(tx *store.Tx) (err error) {
		known, err = tx.Grant(g.ID)
		return err
	})
	switch {
	case notFound(err):
		return false, nil
	case err != nil:
		return false, err
	case !known.RevokedAt.IsZero() && known.Pending() == "":
		return true, nil
	case !known.RevokedAt.IsZero() && time.Since(known.RevokedAt) < receiptDue:
		return false, nil // whoever revoked it is about to sign
	case known.Receipt != "" && !e.clear(ctx, g.ID):
		return false, nil // a second receipt could say no more than the first
	}
	r := revoking{e: e, begun: time.Now(), id: g.ID, reason: known.RevokedWhy}
	if known.RevokedAt.IsZero() {
		r.reason = "it ended at the authority: " + g.How
		r.layer("authority", g.How, true, "seen by the broker at "+g.Seen.UTC().Format(time.RFC3339Nano))
	}
	if _, err = r.run(ctx, store.AsLoop("authority")); err != nil {
		return false, err
	}
	e.cfg.Log.Info("a grant ended at the authority", "grant", g.ID, "how", g.How, "receipt", r.receipt != "")
	return r.receipt != "" && r.whole(), nil
}

// clear reports that the broker holds a revoked grant as ended, and no flow under it.
func (e *Engine) clear(ctx context.Context, id protocol.GrantID) bool {
	r := revoking{e: e, begun: time.Now(), id: id}
	r.revokeAtBroker(ctx)
	return r.whole()
}

// receiptDue is how long a revocation may take until it is signed. One without a
// receipt after that, because its server died or no broker signed, is probed and
// signed when the broker tells of it.
const receiptDue = 30 * time.Second

// revoking is one revocation under way. Once it is recorded nothing undoes it;
// a layer that cannot be reached is said to be not gone.
type revoking struct {
	e      *Engine
	begun  time.Time
	id     protocol.GrantID
	reason string
	grant  policy.Grant
	before bool // revoked when this began
	layers []Layer
	// receipt over the layers; empty while the broker is unreachable.
	receipt string
}

// run is the whole revocation, for a caller who may.
func (r *revoking) run(ctx context.Context, c store.Caller) (Revocation, error) {
	probe, err := r.record(ctx, c)
	if err != nil {
		return Revocation{}, err
	}
	ended := r.endWork(ctx)
	r.revokeAtBroker(ctx)
	r.probe(ctx, probe)
	r.sign(ctx, ended)
	return Revocation{Grant: r.grant, Before: r.before, Layers: r.layers, Ended: ended, Receipt: r.receipt}, nil
}

// whole reports that every layer was seen to be clear.
func (r *revoking) whole() bool {
	return !slices.ContainsFunc(r.layers, func(l Layer) bool { return !l.Gone })
}

func (r *revoking) layer(name, probe string, gone bool, detail string) {
	r.layers = append(r.layers, Layer{Name: name, Probe: probe, Gone: gone, Detail: detail, Took: time.Since(r.begun)})
}

// ownWork is how long a revocation has to end the sessions itself: it knows the
// reason that was given. After a crash the cleanup does it, without one.
const ownWork = 5 * time.Second

// record makes the revocation durable, with its floor. Before that it mints the
// capability that is presented again at the end.
func (r *revoking) record(ctx context.Context, c store.Caller) (probe string, err error) {
	if err := r.e.cfg.Store.View(ctx, c, func(tx *store.Tx) (err error) {
		r.grant, err = tx.Grant(r.id)
		return err
	}); err != nil {
		return "", err
	}
	if r.before = !r.grant.RevokedAt.IsZero(); !r.before {
		probe = r.e.probeToken(ctx, r.grant)
	}
	err = r.e.takeBack(ctx, c, policy.Floor{Kind: policy.FloorGrant, ID: r.id.String(), Minimum: noFloor}, func(tx *store.Tx) (err error) {
		if r.grant, err = tx.RevokeGrant(r.id, r.reason); err != nil || r.before {
			return err
		}
		return r.e.asksSessions(tx, r.grant.Tenant, r.id.String(), tx.Now.Add(ownWork))
	})
	if err != nil {
		return "", err
	}
	r.layer("server", "mint refused", true, "recorded with its floor")
	return probe, nil
}

// endWork ends conversations and turns under the grant, and says which they were.
// takeBack ended the active turns of this replica already.
func (r *revoking) endWork(ctx context.Context) Ended {
	f := onGrant(r.grant)
	if r.reason != "" {
		f.why = &taken{f.why.reason, fmt.Sprintf("The grant %s was revoked: %s", r.id, r.reason)}
	}
	err := r.e.revokeSessions(ctx, f)
	if err == nil {
		_, err = r.e.endTaken(ctx)
	}
	var ended Ended
	if err == nil {
		err = r.e.cfg.Store.View(ctx, f.owner, func(tx *store.Tx) (err error) {
			ended, err = endedUnder(tx, r.grant)
			return err
		})
	}
	detail := ended.count()
	if err != nil {
		detail = "not all ended yet: " + err.Error()
	}
	r.layer("turns", "no active turn under the grant", err == nil, detail)
	return ended
}

func (r *revoking) revokeAtBroker(ctx context.Context) {
	resp, err := r.e.cfg.Broker.RevokeGrant(ctx, r.id)
	if protocol.CodeOf(err) == protocol.CodeNotFound {
		r.layer("broker", "grant refused", true, "the broker does not hold it, and refuses what names it")
		return
	}
	if err != nil {
		r.layer("broker", "grant refused", false, "not reached, its feed carries the floor: "+err.Error())
		return
	}
	detail := fmt.Sprintf("%d flows closed", resp.FlowsClosed)
	if resp.LastAdmittedUs > 0 {
		detail += ", last request admitted at " + time.UnixMicro(resp.LastAdmittedUs).UTC().Format(time.RFC3339Nano)
	}
	r.layer("broker", "grant refused, no flow open", resp.FlowsZeroUs > 0, detail)
	const held = "ended where it is held"
	if pending := resp.GetPending(); pending != "" {
		r.layer("authority", held, false, "the broker refuses it and goes on trying: "+pending)
		return
	}
	r.layer("authority", held, true, "it has it as revoked since "+time.UnixMicro(resp.GetRevokedUs()).UTC().Format(time.RFC3339Nano))
}

// probe presents the capability that worked before the revocation once more.
func (r *revoking) probe(ctx context.Context, token string) {
	if token == "" {
		return // no turn ran under the grant: there is no capability of it
	}
	resp, err := r.e.cfg.Broker.Probe(ctx, token, r.id)
	switch {
	case err != nil:
		r.layer("capability", "same capability presented again", false, "not reached: "+err.Error())
	case resp.Admitted || resp.OpenFlows > 0:
		r.layer("capability", "same capability presented again", false, fmt.Sprintf("admitted=%t, %d flows open", resp.Admitted, resp.OpenFlows))
	default:
		r.layer("capability", "same capability presented again", true, "refused: "+resp.Code)
	}
}

// sign has the layers signed by the broker's receipt key, and keeps the first receipt
// with the grant; beside it the one that shows as gone what the first did not, which
// names it by its digest.
func (r *revoking) sign(ctx context.Context, ended Ended) {
	says := map[string]any{
		"kind": "revocation", "grant": r.id, "tenant": r.grant.Tenant, "principal": r.grant.Principal, "agent": r.grant.Agent,
		"reason": r.reason, "revoked_at": r.grant.RevokedAt.UTC().Format(time.RFC3339Nano), "layers": r.layers, "ended": ended}
	if r.before {
		says["probed_at"] = r.begun.UTC().Format(time.RFC3339Nano)
	}
	if first := r.grant.Receipt; first != "" {
		says["follows"] = canonical.Digest([]byte(first))
	}
	body, err := canonical.Marshal(says)
	if err == nil {
		r.receipt, err = r.e.cfg.Broker.SignReceipt(ctx, body)
	}
	if err == nil {
		err = r.e.cfg.Store.Update(ctx, store.AsLoop("receipt"), func(tx *store.Tx) error {
			if err := tx.KeepReceipt(r.id, r.receipt); err != nil {
				return err
			}
			kept, err := tx.Grant(r.id)
			if err == nil {
				r.grant = kept
			}
			return err
		})
	}
	if err != nil {
		r.e.cfg.Log.Warn("a revocation has no kept receipt", "grant", r.id, "error", err)
	}
}
