package engine

import (
	"bytes"
	"context"
	"errors"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/policy"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Rotation is what became of the renewal of a grant's secret part.
type Rotation struct {
	Grant policy.Grant
	// Sessions that stand on the grant. They go on.
	Sessions []string
	Receipt  string // JWS by the broker's receipt key; empty: none was signed
}

// ownRotation is how long a rotation has to finish by itself, before the cleanup goes
// on with it.
const ownRotation = 5 * time.Second

// RotateGrant renews the secret part of a grant without ending it. The intent is
// durable first; then the broker makes the new part, it is stored, and the old one
// ends. Whoever dies in between leaves one or both in force, and the cleanup goes on
// from there: every step may be done again. INV-4, INV-18.
func (e *Engine) RotateGrant(ctx context.Context, c store.Caller, id protocol.GrantID) (Rotation, error) {
	r := rotating{e: e, id: id}
	err := e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error {
		g, err := tx.BeginRotation(id, newID[protocol.CleanupKind](e, tx.Now), tx.Now.Add(ownRotation))
		r.rotation = g.Rotation
		return err
	})
	if err != nil {
		return Rotation{}, err
	}
	out, err := r.run(ctx)
	if err == nil || r.ended {
		return out, err
	}
	return out, protocol.Errorf(protocol.CodeOf(err), "the secret part of grant %s is not renewed yet: %w; that it shall be is noted, and the server goes on trying; "+
		"until then the old one counts. bivouac grant show %s says when it is done", id, err, id)
}

// cleanRotation goes on with a rotation that did not come to its end.
func (e *Engine) cleanRotation(ctx context.Context, c policy.Cleanup) error {
	id, err := protocol.ParseID[protocol.GrantKind](c.Subject)
	if err != nil {
		return err
	}
	r := rotating{e: e, id: id, rotation: c.ID, tries: c.Tries}
	if _, err := r.run(ctx); err != nil && !r.ended {
		return e.cleaned(ctx, c, "", err)
	}
	return nil // it is done, and said so itself
}

// rotating is one rotation under way.
type rotating struct {
	e        *Engine
	id       protocol.GrantID
	rotation protocol.CleanupID
	tries    int
	ended    bool // the cleanup is done, however it went: nothing is tried again
}

// refusesRotation reports an answer of the broker that stays: it has no such grant, or
// the grant was revoked there.
func refusesRotation(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.CodeNotFound || code == protocol.CodeConflict
}

func (r *rotating) run(ctx context.Context) (Rotation, error) {
	sealed, err := r.e.cfg.Broker.RotateGrant(ctx, r.id, r.rotation.String())
	if err == nil {
		err = r.keep(ctx, sealed)
	}
	if err == nil {
		err = r.e.cfg.Broker.SettleRotation(ctx, r.id, r.rotation.String())
	}
	if err == nil {
		return r.finish(ctx)
	}
	if out, done := r.finished(ctx); done {
		return out, nil
	}
	if refusesRotation(err) {
		return Rotation{}, r.giveUp(ctx, err)
	}
	return Rotation{}, err
}

// inForce is the evidence of a rotation that came to its end.
const inForce = "the new secret part is in force, and the old one refused"

// finished is what became of a rotation that another brought to its end meanwhile, the
// call or its cleanup: nothing is left to do, whatever was refused to us for that.
func (r *rotating) finished(ctx context.Context) (out Rotation, done bool) {
	err := r.e.cfg.Store.View(ctx, store.AsLoop("rotation"), func(tx *store.Tx) error {
		c, err := tx.Cleanup(r.rotation)
		if err != nil {
			return err
		}
		done = !c.DoneAt.IsZero() && c.Evidence == inForce
		out.Grant, err = tx.Grant(r.id)
		out.Receipt = out.Grant.RotationReceipt
		return err
	})
	if err != nil || !done {
		return Rotation{}, false
	}
	r.ended = true
	under, err := r.e.standingOn(ctx, out.Grant)
	if err != nil {
		r.e.cfg.Log.Warn("the sessions that stand on a renewed grant are not listed", "grant", r.id, "error", err)
	}
	for _, id := range under {
		out.Sessions = append(out.Sessions, id.String())
	}
	return out, true
}

// keep stores the new part, from which moment on it is what is minted with.
func (r *rotating) keep(ctx context.Context, sealed []byte) error {
	return r.e.cfg.Store.Update(ctx, store.AsLoop("rotation"), func(tx *store.Tx) error {
		return tx.KeepRotated(r.id, r.rotation, sealed)
	})
}

// finish signs a receipt, tells the sessions that stand on the grant, and closes the
// cleanup, in one transaction: each of them is told once.
func (r *rotating) finish(ctx context.Context) (Rotation, error) {
	var out Rotation
	var under []protocol.SessionID
	err := r.e.cfg.Store.View(ctx, store.AsLoop("rotation"), func(tx *store.Tx) (err error) {
		out.Grant, err = tx.Grant(r.id)
		return err
	})
	if err != nil {
		return out, err
	}
	if under, err = r.e.standingOn(ctx, out.Grant); err != nil {
		return out, err
	}
	out.Receipt = r.sign(ctx, out.Grant)
	err = r.e.cfg.Store.Update(ctx, store.AsLoop("rotation"), func(tx *store.Tx) (err error) {
		if err := tx.EndRotation(r.id, r.rotation, out.Receipt); err != nil {
			return err
		}
		out.Sessions = nil
		for _, id := range under {
			s, err := tx.Session(id)
			if err != nil {
				return err
			}
			if s.State.Terminal() {
				continue
			}
			if _, err := tx.AppendEvents(id, session.Event{Type: session.GrantRotated, Data: map[string]string{"grant": r.id.String(), "rotation": r.rotation.String()}}); err != nil {
				return err
			}
			out.Sessions = append(out.Sessions, id.String())
		}
		if out.Grant, err = tx.Grant(r.id); err != nil {
			return err
		}
		return r.close(tx, inForce)
	})
	if notFound(err) { // another was faster: the call, or its cleanup
		if out, done := r.finished(ctx); done {
			return out, nil
		}
		r.ended = true
		return Rotation{}, protocol.Errorf(protocol.CodeConflict, "the renewal of grant %s was given up: bivouac grant show %s says how it stands", r.id, r.id)
	}
	if r.ended = err == nil; r.ended {
		r.e.cfg.Log.Info("the secret part of a grant was renewed", "grant", r.id, "rotation", r.rotation, "sessions", len(out.Sessions), "receipt", out.Receipt != "")
	}
	return out, err
}

// giveUp closes a rotation that cannot come to its end any more. What there is of the
// grant stays as it is: the part that is stored is one that counted, or none does.
func (r *rotating) giveUp(ctx context.Context, why error) error {
	err := r.e.cfg.Store.Update(ctx, store.AsLoop("rotation"), func(tx *store.Tx) error {
		g, err := tx.Grant(r.id)
		if err != nil {
			return err
		}
		if err := tx.EndRotation(r.id, r.rotation, g.RotationReceipt); err != nil && !notFound(err) {
			return err
		}
		return r.close(tx, "given up: "+why.Error())
	})
	r.ended = err == nil
	return errors.Join(why, err)
}

// close the cleanup, unless it is closed.
func (r *rotating) close(tx *store.Tx, evidence string) error {
	err := tx.SaveCleanup(policy.Cleanup{ID: r.rotation, Tries: r.tries + 1, DoneAt: tx.Now, Evidence: evidence})
	if notFound(err) {
		return nil
	}
	return err
}

// standingOn are the sessions that are open and stand on a grant now.
func (e *Engine) standingOn(ctx context.Context, g policy.Grant) (out []protocol.SessionID, err error) {
	g.RevokedAt = time.Now() // as if it ended now
	f := onGrant(g)
	for cursor := ""; ; {
		err := e.cfg.Store.View(ctx, f.owner, func(tx *store.Tx) (err error) {
			var page []session.Session
			if page, cursor, err = tx.Sessions(0, cursor); err != nil {
				return err
			}
			under, err := f.carries(tx, page)
			out = append(out, under...)
			return err
		})
		if err != nil || cursor == "" {
			return out, err
		}
	}
}

// sign has the rotation signed by the broker's receipt key. Without a signature it is
// done all the same.
func (r *rotating) sign(ctx context.Context, g policy.Grant) (receipt string) {
	body, err := canonical.Marshal(map[string]any{
		"kind": "rotation", "grant": g.ID, "tenant": g.Tenant, "principal": g.Principal, "agent": g.Agent, "rotation": r.rotation,
		"begun_at": g.RotationAt.UTC().Format(time.RFC3339Nano), "rotated_at": g.RotatedAt.UTC().Format(time.RFC3339Nano),
		"old_refused_at": time.Now().UTC().Format(time.RFC3339Nano)})
	if err == nil {
		receipt, err = r.e.cfg.Broker.SignReceipt(ctx, body)
	}
	if err != nil {
		r.e.cfg.Log.Warn("a rotation has no receipt", "grant", r.id, "error", err)
	}
	return receipt
}

// maxRenewed bounds how often one call follows the renewals of its grant.
const maxRenewed = 5

// errUnread says that what a call was to go out with could not be read: nothing is
// known against the call, and nothing of it has left.
var errUnread = errors.New("engine: the new part of a grant was not read")

// invoke makes a call. One that was refused before it left, because its grant was
// renewed after its capability was minted, is made once more with the part that counts
// now, and again where that was renewed too. A part that was refused is not shown
// twice. INV-5.
func (e *Engine) invoke(ctx context.Context, c *gatewayCall) (*brokerv1.InvokeResponse, error) {
	resp, err := e.cfg.Broker.Invoke(ctx, c.request)
	for range maxRenewed {
		if protocol.DetailOf(err) != protocol.DetailGrantRotated {
			break
		}
		next, failed := e.renewedCall(ctx, c, err)
		if failed != nil {
			return nil, failed
		}
		c = next
		resp, err = e.cfg.Broker.Invoke(ctx, c.request)
	}
	return resp, err
}

// renewedCall prepares a call with the part that counts now. The refusal stays where
// there is none; a store that does not answer is errUnread.
func (e *Engine) renewedCall(ctx context.Context, c *gatewayCall, refused error) (next *gatewayCall, err error) {
	err = e.onTurn(ctx, "dispatch", c.action.Turn, func(w *turnTx) error {
		a, err := w.tx.Action(c.action.ID)
		if err != nil {
			return err
		}
		if a.State.Terminal() || a.Fence != c.action.Fence {
			return refused
		}
		next, err = w.prepareCall(a)
		return err
	})
	switch {
	case err == nil && next.grant == c.grant && bytes.Equal(next.sealed, c.sealed):
		return nil, refused
	case err == nil:
		return next, nil
	case isUngranted(err):
		return nil, protocol.Errorf(protocol.CodePermissionDenied, "%w", err)
	case isTaken(err) || errors.Is(err, refused):
		return nil, refused
	}
	e.cfg.Log.Warn("a call whose grant was renewed cannot be made again yet", "action", c.action.ID, "error", err)
	return nil, errors.Join(errUnread, err)
}
