package vaultpolicy

import (
	"context"
	"crypto/sha256"
	"errors"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/policies"
)

// Step is what became, or would become, of one grant or credential that moves here.
type Step string

// The steps of a move.
const (
	StepMove    Step = "moves"                  // it is not here yet
	StepThere   Step = "is there"               // it can be read: an earlier move brought it, or somebody set it since
	StepRevoked Step = "is refused there too"   // it ended before it moved: its id is never used again
	StepEnded   Step = "ended there, and stays" // somebody has ended it here since it moved
)

// Once runs something with a login of its own, which ends after it. It is for whoever
// does not Run.
func (v *Vault) Once(ctx context.Context, do func(ctx context.Context) error) error {
	defer v.client.Close()
	inside, leave := context.WithCancel(ctx)
	defer leave()
	var login errgroup.Group
	login.Go(func() error { return v.session.Run(inside) })
	err := do(ctx)
	leave()
	return errors.Join(err, login.Wait())
}

// MoveGrant brings a grant here under its own id: for its person, with its credentials
// and the names of the secret part that is in force and of those that are over, so that what was sealed elsewhere
// goes on to stand for it until it is renewed. One that was revoked is listed as
// revoked. Again it changes nothing: what ended here stays ended. dry: nothing changes
// the first time either.
func (v *Vault) MoveGrant(ctx context.Context, g authority.Grant, part authority.Rotation, over authority.Over, dry bool) (Step, error) {
	n := renewal{part: part, past: over}
	step, err := v.moveGrant(ctx, g, n, dry)
	if client.KindOf(err) == client.Changed { // another was faster
		step, err = v.moveGrant(ctx, g, n, dry)
	}
	return step, err
}

func (v *Vault) moveGrant(ctx context.Context, g authority.Grant, n renewal, dry bool) (Step, error) {
	if err := g.Check(); err != nil {
		return "", err
	}
	r, found, err := v.readRecord(ctx, g.Principal, g.ID)
	if err != nil {
		return "", err
	}
	if found {
		return v.movedBefore(ctx, r, g, dry)
	}
	if r.version, err = v.versionOf(ctx, g.Principal, g.ID); err != nil {
		return "", err
	}
	if r.version > 0 { // somebody deleted it here, which ends it
		return StepEnded, nil
	}
	if !g.RevokedAt.IsZero() {
		return StepRevoked, v.moveEnd(ctx, g, dry)
	}
	if err := v.policiesExist(ctx, g); err != nil || dry {
		return StepMove, err
	}
	token, accessor, _, err := v.makeToken(ctx, g)
	if err != nil {
		return "", err
	}
	sealed, err := v.seal(ctx, opened{grant: g, token: token, part: n.part, accessor: accessor})
	if err == nil {
		r = record{entry: entry{grant: g, accessor: accessor}, state: stateAlive, sealed: sealed, renewal: n}
		err = v.writeRecord(ctx, r)
	}
	if err != nil {
		v.undo(ctx, accessor)
		return "", err
	}
	return StepMove, nil
}

// movedBefore is a grant that an earlier move brought here. One that was revoked since
// where it was before ends here too.
func (v *Vault) movedBefore(ctx context.Context, r record, g authority.Grant, dry bool) (Step, error) {
	switch {
	case r.spoiled:
		return "", spoiled(g.ID)
	case !r.grant.SameAs(g):
		return "", protocol.Errorf(protocol.CodeConflict, "grant %s exists in the server with other content: it does not move; look at %s", g.ID, v.indexPath("data", g.Principal, g.ID))
	case !r.alive() && !g.RevokedAt.IsZero():
		return StepRevoked, nil
	case !r.alive():
		return StepEnded, nil
	case g.RevokedAt.IsZero():
		return StepThere, nil
	case dry:
		return StepRevoked, nil
	}
	e := r.entry
	e.grant.RevokedAt, e.how, e.unfinished = g.RevokedAt, howMoved, true
	v.table.put(e)
	return StepRevoked, v.finish(ctx, e)
}

const howMoved = "it was revoked at the broker before it moved here"

// moveEnd lists a grant that ended before it moved.
func (v *Vault) moveEnd(ctx context.Context, g authority.Grant, dry bool) error {
	if dry {
		return nil
	}
	return v.writeRecord(ctx, record{entry: entry{grant: g, how: howMoved}, state: stateRevoked})
}

// MoveCredential brings a credential here, unless one of the name can be read there:
// that is newer. One that was deleted there is neither: what moves would end the only
// copy, or bring back what somebody took away, so that it is refused, dry or not.
func (v *Vault) MoveCredential(ctx context.Context, tenant protocol.TenantID, name string, value secret.Value, dry bool) (Step, error) {
	c := policies.Credential{Tenant: tenant, Name: name}
	step, err := v.credentialThere(ctx, c)
	if err != nil || dry || step == StepThere {
		return step, err
	}
	_, err = v.write(ctx, "store credentials", v.credentialPath("data", c),
		map[string]any{"data": map[string]any{valueField: value.Reveal()}, "options": map[string]any{"cas": 0}})
	if client.KindOf(err) == client.Changed { // somebody was faster
		if step, err = v.credentialThere(ctx, c); err == nil && step != StepThere {
			err = unavailable("the credential %q of tenant %s changes in the server in this moment", name, tenant)
		}
	}
	if err != nil {
		return "", err
	}
	return step, nil
}

// credentialThere says whether a credential moves, or is there.
func (v *Vault) credentialThere(ctx context.Context, c policies.Credential) (Step, error) {
	n, err := v.newest(ctx, c)
	switch {
	case err != nil:
		return "", err
	case n.readable:
		return StepThere, nil
	case n.number == 0:
		return StepMove, nil
	}
	path := v.names.Credentials + "/" + c.Tenant.String() + "/" + c.Name
	return "", protocol.Errorf(protocol.CodeFailedPrecondition,
		"the credential %q of tenant %s was deleted in the server, and the keyring holds the only copy that can be read: it does not move. Take that back with vault kv undelete -mount=%s -versions=%d %s/%s, or let the keyring's move with vault kv metadata delete %s",
		c.Name, c.Tenant, v.names.Credentials, n.number, c.Tenant, c.Name, path)
}

// openHeld opens a sealed grant: one of this server's, or one that was sealed by the
// keyring and moved here. For that one the index holds what stands in its place, until
// the grant is renewed.
func (v *Vault) openHeld(ctx context.Context, u authority.Use) (opened, error) {
	o, err := v.open(ctx, u)
	if protocol.CodeOf(err) != protocol.CodePermissionDenied {
		return o, err
	}
	g, part, foreign := v.trust.OpenGrant(u.Sealed)
	if foreign != nil {
		return opened{}, err
	}
	r, found, read := v.readRecord(ctx, g.Principal, g.ID)
	switch {
	case read != nil:
		return opened{}, read
	case !found || r.spoiled || !r.grant.SameAs(g):
		return opened{}, err
	case !r.alive():
		v.adopt(ctx, r)
		return opened{}, authority.Revoked(g.ID, r.how)
	case r.part != part:
		return opened{}, authority.Rotated(g.ID)
	}
	o, err = v.open(ctx, authority.Use{Grant: g.ID, Principal: g.Principal, Sealed: r.sealed})
	if err == nil {
		v.openGrants.put(sha256.Sum256(u.Sealed), o)
	}
	return o, err
}
