package vaultpolicy

import (
	"context"
	"encoding/base64"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/vaultpolicy/client"
)

// secretPart is what a rotation renews: the token of a grant, by its accessor, and the
// grant sealed with it.
type secretPart struct {
	name     authority.Rotation // of the rotation that made it; empty: the first
	accessor string
	sealed   []byte
}

// renewal is what the entry of a grant says of rotations. An admin sees it beside
// accessor and sealed, which are of the part in force.
type renewal struct {
	part authority.Rotation // in force
	next secretPart         // made, and not in force yet
	old  string             // accessor of the part that was in force before, until it is ended
	past authority.Over     // rotations whose parts counted, and do not any more
}

func parseRenewal(d map[string]any) (n renewal, ok bool) {
	sealed, err := base64.StdEncoding.DecodeString(client.Text(d["next_sealed"]))
	n.part, n.old = authority.Rotation(client.Text(d["rotation"])), client.Text(d["old_accessor"])
	n.next = secretPart{authority.Rotation(client.Text(d["next_rotation"])), client.Text(d["next_accessor"]), sealed}
	for _, name := range client.Texts(d["past_rotations"]) {
		n.past = append(n.past, authority.Rotation(name))
	}
	return n, err == nil
}

// into puts what there is of it into an entry.
func (n renewal) into(d map[string]any) {
	for key, text := range map[string]string{
		"rotation": string(n.part), "next_rotation": string(n.next.name), "next_accessor": n.next.accessor,
		"next_sealed": base64.StdEncoding.EncodeToString(n.next.sealed), "old_accessor": n.old,
	} {
		if text != "" {
			d[key] = text
		}
	}
	if len(n.past) > 0 {
		d["past_rotations"] = n.past
	}
}

// RotateGrant makes another token of the grant, for the same person, beside the one in
// force, and keeps it in the entry. The same rotation again is the same ciphertext, for
// as long as its token lives; one that is over is refused.
func (v *Vault) RotateGrant(ctx context.Context, id protocol.GrantID, r authority.Rotation) ([]byte, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	sealed, err := v.makeNext(ctx, id, r)
	if client.KindOf(err) == client.Changed { // somebody else was doing the same
		sealed, err = v.makeNext(ctx, id, r)
	}
	return sealed, err
}

func (v *Vault) makeNext(ctx context.Context, id protocol.GrantID, name authority.Rotation) ([]byte, error) {
	r, err := v.living(ctx, id)
	if err != nil || r.part == name {
		return r.sealed, err
	}
	if r.next.name == name {
		if lives, err := v.lives(ctx, id, r.next.accessor); err != nil || lives {
			return r.next.sealed, err
		}
	}
	if err := r.past.Check(id, name); err != nil {
		return nil, err
	}
	if err := v.policiesExist(ctx, r.grant); err != nil {
		return nil, err
	}
	token, accessor, _, err := v.makeToken(ctx, r.grant)
	if err != nil {
		return nil, err
	}
	before := r.next
	sealed, err := v.seal(ctx, opened{grant: r.grant, token: token, part: name, accessor: accessor})
	if err == nil {
		if before.name != name {
			r.past = r.past.With(before.name)
		}
		r.next = secretPart{name, accessor, sealed}
		err = v.writeRecord(ctx, r)
	}
	if err != nil {
		v.undo(ctx, accessor)
		return nil, err
	}
	v.table.staged(id, r.next)
	if err := v.endOther(ctx, id, before.accessor); err != nil {
		v.log.WarnContext(ctx, "the token of a rotation that another took the place of lives until its period ends", "grant", id, "accessor", before.accessor, "error", err)
	}
	return sealed, nil
}

// SettleRotation puts the new part in force and ends the old token. The entry says
// first which token is the grant's from now on, and which is to be ended: so at every
// moment one is in force that lives, and no end of the old one is taken for the grant's.
func (v *Vault) SettleRotation(ctx context.Context, id protocol.GrantID, r authority.Rotation) error {
	if err := r.Check(); err != nil {
		return err
	}
	for _, step := range []func(context.Context, protocol.GrantID, authority.Rotation) error{v.takeNext, v.endOld} {
		err := step(ctx, id, r)
		if client.KindOf(err) == client.Changed {
			err = step(ctx, id, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (v *Vault) takeNext(ctx context.Context, id protocol.GrantID, name authority.Rotation) error {
	r, err := v.living(ctx, id)
	switch {
	case err != nil || r.part == name:
		return err
	case r.next.name != name:
		return name.Unknown(id)
	}
	lives, err := v.lives(ctx, id, r.next.accessor)
	if err != nil {
		return err
	}
	if !lives {
		return unavailable("the new token of grant %s ended before it came into force: it is made once more", id)
	}
	next := r.next
	r.old, r.accessor, r.sealed = r.accessor, next.accessor, next.sealed
	r.past, r.part, r.next = r.past.With(r.part), name, secretPart{}
	if err := v.writeRecord(ctx, r); err != nil {
		return err
	}
	v.renewedTo(id, next.accessor, name)
	return nil
}

// endOld ends the token that was in force before, which the entry names until then.
func (v *Vault) endOld(ctx context.Context, id protocol.GrantID, name authority.Rotation) error {
	r, err := v.living(ctx, id)
	if err != nil || r.old == "" {
		return err
	}
	if r.part != name {
		return name.Unknown(id)
	}
	if err := v.endOther(ctx, id, r.old); err != nil {
		return err
	}
	r.old = ""
	return v.writeRecord(ctx, r)
}

// living reads the entry of a grant that must be alive, here and there.
func (v *Vault) living(ctx context.Context, id protocol.GrantID) (record, error) {
	e, known := v.table.get(id)
	if !known {
		if _, err := v.table.of(""); err != nil {
			return record{}, err // the index was not read yet
		}
		return record{}, protocol.Errorf(protocol.CodeNotFound, "the broker has no grant %s", id)
	}
	r, found, err := v.readRecord(ctx, e.grant.Principal, id)
	if err != nil {
		return record{}, err
	}
	if found {
		v.adopt(ctx, r)
	}
	e, known = v.table.get(id)
	switch {
	case !known || !found || !e.grant.RevokedAt.IsZero() || r.over():
		return record{}, wasRevoked(id)
	case !r.alive():
		return record{}, spoiled(id)
	}
	return r, nil
}

// lives reports that an accessor is of a token of the grant that lives.
func (v *Vault) lives(ctx context.Context, id protocol.GrantID, accessor string) (bool, error) {
	if accessor == "" {
		return false, nil
	}
	a, err := v.lookup(ctx, accessor)
	switch k := client.KindOf(err); {
	case err == nil:
		return tokenOf(a, id), nil
	case k == client.NoAccessor, k == client.Refused && badToken(err) && v.mayLookUp(ctx):
		return false, v.session.Prove(ctx)
	}
	return false, v.may("look grants up", "write "+lookupPath, err)
}

// endOther ends a token of a grant beside the one in force, and no token of anything
// else: whoever may write an entry could name any accessor there.
func (v *Vault) endOther(ctx context.Context, id protocol.GrantID, accessor string) error {
	if lives, err := v.lives(ctx, id, accessor); err != nil || !lives {
		return err
	}
	return v.revokeToken(ctx, accessor)
}

// renewedTo takes another part as the one in force. Older ones open nothing from now on.
func (v *Vault) renewedTo(id protocol.GrantID, accessor string, part authority.Rotation) {
	v.table.replaced(id, accessor, part)
	v.openGrants.drop(id)
}

// renewal reports that the entry of a grant names another token because the grant was
// renewed, here or by another broker, and takes it over. What proves it is what the
// entry holds sealed: only a broker seals, and inside stands the accessor. While that
// cannot be opened nothing is concluded.
func (v *Vault) renewal(ctx context.Context, known entry, r record) bool {
	if r.part == "" || r.part == known.inForce {
		return false
	}
	o, err := v.open(ctx, authority.Use{Grant: known.grant.ID, Principal: known.grant.Principal, Sealed: r.sealed})
	switch {
	case err != nil:
		return client.KindOf(err).Unknown()
	case !o.grant.SameAs(known.grant) || o.part != r.part || o.accessor != r.accessor:
		return false
	}
	v.renewedTo(known.grant.ID, r.accessor, r.part)
	v.log.InfoContext(ctx, "a grant was renewed", "grant", known.grant.ID, "rotation", r.part)
	return true
}

// listed is what a reading of an entry of the index came to.
type listed struct {
	r     record
	found bool
	err   error
}

// superseded reports that a token which is gone is not the grant's any more, because
// the grant was renewed since it was looked at, here or as its entry says.
func (v *Vault) superseded(ctx context.Context, e entry, now listed) bool {
	if here, ok := v.table.get(e.grant.ID); ok && here.accessor != e.accessor {
		return true
	}
	if now.err != nil {
		return client.KindOf(now.err).Unknown()
	}
	return now.found && now.r.alive() && now.r.accessor != e.accessor && v.renewal(ctx, e, now.r)
}

// counts refuses an older secret part of a grant that lives. One that is not known as
// either is looked for in the index: another broker may have made it.
func (v *Vault) counts(ctx context.Context, o opened) error {
	id := o.grant.ID
	for asked := false; ; asked = true {
		e, ok := v.table.get(id)
		switch {
		case ok && (o.part == e.inForce || o.part != "" && o.part == e.pending.name):
			return nil
		case !ok || asked:
			return authority.Rotated(id)
		}
		r, found, err := v.readRecord(ctx, o.grant.Principal, id)
		if err != nil {
			return err
		}
		if found {
			v.adopt(ctx, r)
			v.table.staged(id, r.next)
		}
	}
}

// staged notes the part that is made and not in force.
func (t *table) staged(id protocol.GrantID, next secretPart) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.grants[id]; e != nil {
		e.pending = next
	}
}

// replaced puts another token in a grant's place. Its look-ups begin anew.
func (t *table) replaced(id protocol.GrantID, accessor string, part authority.Rotation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.grants[id]
	if e == nil || e.accessor == accessor {
		return
	}
	e.accessor, e.inForce, e.pending, e.own = accessor, part, secretPart{}, true
	e.proven, e.expires, e.cut, e.renewedAt = t.now(), time.Time{}, false, time.Now()
	t.indexLocked(e)
}
