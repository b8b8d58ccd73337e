package vaultpolicy

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/vaultpolicy/client"
)

// finishAll makes the server know of every end, and tries again what it did not take.
func (v *Vault) finishAll(ctx context.Context) error {
	again := time.NewTicker(v.poll)
	defer again.Stop()
	wrong := complaint{log: v.log, what: "the server does not take the end of a grant"}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-v.clean:
		case <-again.C:
		}
		var ends errgroup.Group
		ends.SetLimit(parallel)
		for _, e := range v.table.unfinished() {
			ends.Go(func() error { return v.finish(ctx, e) })
		}
		wrong.about(ctx, ends.Wait())
	}
}

// finish ends the token where it lives, and writes the end into the index, unless
// somebody else has since e was taken.
func (v *Vault) finish(ctx context.Context, e entry) error {
	return v.ends.one(ctx, e.grant.ID, func() error {
		if now, ok := v.table.get(e.grant.ID); ok {
			if !now.unfinished {
				return nil
			}
			e = now
		}
		return v.endInServer(ctx, e)
	})
}

func (v *Vault) endInServer(ctx context.Context, e entry) error {
	if !e.settled {
		if _, err := v.endToken(ctx, e); err != nil {
			return err
		}
		// That a token is gone counts where the server that says so is proven after it.
		if err := v.session.Prove(ctx); err != nil {
			return err
		}
		v.table.settle(e)
	}
	err := v.writeEnd(ctx, e)
	if client.KindOf(err) == client.Changed { // another broker wrote the same
		err = v.writeEnd(ctx, e)
	}
	return err
}

// endToken ends the token of a grant, and no other: whoever may write an entry of the
// index could name any accessor there. An accessor that is not known as the grant's
// own is asked first whose it is; where it is another's, or nobody's, the grant's own
// token is taken out of what was sealed. mine: the accessor is of the grant's own.
func (v *Vault) endToken(ctx context.Context, e entry) (mine bool, err error) {
	if e.own {
		return true, v.revokeToken(ctx, e.accessor)
	}
	foreign := false
	a, err := v.lookup(ctx, e.accessor)
	switch k := client.KindOf(err); {
	case e.accessor == "": // nobody's
	case err == nil && tokenOf(a, e.grant.ID):
		return true, v.revokeToken(ctx, e.accessor)
	case err == nil:
		foreign = true
		v.log.WarnContext(ctx, "the index names the token of something else for a grant that ended: that token is left alone", "grant", e.grant.ID, "accessor", e.accessor)
	case k == client.NoAccessor, k == client.Refused && badToken(err) && v.mayLookUp(ctx):
	default:
		return false, v.may("end a grant", "write "+lookupPath, err)
	}
	return false, v.endSealed(ctx, e, foreign)
}

// endSealed ends the token that the entry of a grant holds sealed, by its own right to
// end itself. What it cannot end ends with its period, because nobody renews it; that is
// said where a foreign accessor had taken its place. Where the accessor is nobody's, a
// token that is refused is the one that had it.
func (v *Vault) endSealed(ctx context.Context, e entry, foreign bool) error {
	lives := func(why error) {
		if !foreign {
			return
		}
		v.log.WarnContext(ctx, "the token of a grant that ended was not found, and lives until its period ends if it lives", "grant", e.grant.ID, "period", v.period, "error", why)
	}
	r, found, err := v.readRecord(ctx, e.grant.Principal, e.grant.ID)
	if err != nil {
		return err
	}
	if !found {
		lives(errNoSealed)
		return nil
	}
	defer v.openGrants.drop(e.grant.ID)
	o, err := v.open(ctx, authority.Use{Grant: e.grant.ID, Principal: e.grant.Principal, Sealed: r.sealed})
	if err == nil && o.grant.ID == e.grant.ID {
		_, err = v.client.Write(ctx, o.token, "auth/token/revoke-self", nil)
	}
	switch {
	case err == nil:
		v.log.InfoContext(ctx, "the token of a grant that ended was ended by what the index holds sealed", "grant", e.grant.ID)
	case protocol.CodeOf(err) == protocol.CodePermissionDenied, client.KindOf(err) == client.Refused:
		lives(err) // not sealed here, or ended already, or it may not end itself
	default:
		return err
	}
	return nil
}

var errNoSealed = protocol.Errorf(protocol.CodeNotFound, "its entry in the index is gone")

// lost reports that the server does not hold an end: it was not told of it yet, or it
// was put back to a state from before it. Then the end is made once more.
func (v *Vault) lost(ctx context.Context, e entry) (bool, error) {
	if e.unfinished {
		return true, nil
	}
	r, found, err := v.readRecord(ctx, e.grant.Principal, e.grant.ID)
	if err != nil || !found || r.finished() {
		return false, err
	}
	if v.table.reopen(e.grant.ID) {
		v.log.WarnContext(ctx, "the server does not hold the end of a grant any more: its token is ended again", "grant", e.grant.ID)
		v.clean.Ring()
	}
	return true, nil
}

// endListed ends every token that the entry of a grant names, as it is read now: another
// broker may have renewed the grant since it was known here, and be gone. It returns
// what is to be listed as ended: the token in force, where that was found.
func (v *Vault) endListed(ctx context.Context, e entry, r record) (entry, error) {
	if r.accessor != e.accessor && (r.accessor != "" || len(r.sealed) > 0) {
		there := e
		there.accessor, there.inForce, there.own = r.accessor, r.part, false
		mine, err := v.endToken(ctx, there)
		if err == nil { // as where the token that is known here was ended
			err = v.session.Prove(ctx)
		}
		if err != nil {
			return e, err
		}
		if mine {
			e = there
		}
	}
	for _, accessor := range []string{r.old, r.next.accessor, e.pending.accessor} { // it was being renewed
		if err := v.endOther(ctx, e.grant.ID, accessor); err != nil {
			return e, err
		}
	}
	return e, nil
}

// writeEnd marks the entry of a grant as revoked, over the version whose tokens were
// ended. What was sealed in it opens nothing any more, and is taken out.
func (v *Vault) writeEnd(ctx context.Context, e entry) error {
	r, found, err := v.readRecord(ctx, e.grant.Principal, e.grant.ID)
	if err != nil {
		return err
	}
	if found && r.finished() {
		v.table.finished(e)
		return nil
	}
	if !found { // its id shall not be used again
		if r.version, err = v.versionOf(ctx, e.grant.Principal, e.grant.ID); err != nil {
			return err
		}
	}
	listed, err := v.endListed(ctx, e, r)
	if err != nil {
		return err
	}
	r.entry, r.state, r.sealed = listed, stateRevoked, nil
	r.renewal = renewal{part: listed.inForce}
	if err := v.writeRecord(ctx, r); err != nil {
		return err
	}
	v.table.finished(e)
	return nil
}
