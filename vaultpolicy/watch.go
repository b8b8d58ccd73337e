package vaultpolicy

import (
	"cmp"
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
)

const (
	// parallel requests of one loop.
	parallel = 16
	// gentle is how many look up grants that nobody uses: whatever is in use, or was
	// named, is not to wait for them.
	gentle = 4
	// allAgain is how often a wake-up may look up grants that nobody uses.
	allAgain = 5 * time.Second
	// roundIn bounds a round of those in use.
	roundIn = 10 * time.Second
	// failedAgain is the wait after a server that could not be asked.
	failedAgain = time.Second
)

// watchUsed looks those in use up every poll, with their entries, and when it is woken.
func (v *Vault) watchUsed(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	p := pace{poll: v.poll}
	wrong := complaint{log: v.log, what: "the server that holds the grants cannot be asked"}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-v.look:
			p.woken()
		}
		if wrong.about(ctx, v.round(ctx)) {
			// Whoever is refused asks again and wakes the loop: not faster than this.
			op.Sleep(ctx, min(v.poll, failedAgain))
		}
		timer.Reset(p.next())
	}
}

// pace of the look-ups. A wake-up is followed by some quick rounds, because a server
// may go on ending tokens after it has answered.
type pace struct {
	poll  time.Duration
	quick int // rounds that follow soon
}

const (
	quickRounds = 3
	quickAgain  = 300 * time.Millisecond
)

func (p *pace) woken() { p.quick = quickRounds }

func (p *pace) next() time.Duration {
	if p.quick > 0 {
		p.quick--
		return min(quickAgain, p.poll)
	}
	return p.poll
}

// round asks first whether the server is the one that it was and the broker who it
// says, so that neither another server nor a login that is lost ends a grant; then
// about the grants in use.
func (v *Vault) round(ctx context.Context) error {
	if err := v.proven(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, roundIn)
	defer cancel()
	return v.lookUp(ctx, v.table.inUse(), parallel, func(e entry) {
		if v.table.entryDue(e.grant.ID, v.poll) {
			v.reread(ctx, e)
		}
	})
}

// proven asks about server and login, and notes the outcome for who asks about a grant.
func (v *Vault) proven(ctx context.Context) error {
	sent := v.table.now()
	if err := v.session.Prove(ctx); err != nil {
		v.table.silent(err)
		return err
	}
	v.table.hear(sent)
	return nil
}

// lookUp some grants, a number of them at the same time. What was not begun when ctx
// ends is as if nobody had thought of it. The error is one of many.
func (v *Vault) lookUp(ctx context.Context, some []entry, atOnce int, then func(entry)) error {
	people := newPersons()
	var looks errgroup.Group
	looks.SetLimit(atOnce)
	var mu sync.Mutex
	var odd error
	for _, e := range some {
		looks.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			if v.table.try(e) {
				v.examine(ctx, e, people, func(err error) {
					mu.Lock()
					defer mu.Unlock()
					odd = err
				})
			}
			then(e)
			return nil
		})
	}
	_ = looks.Wait() // none fails
	return odd
}

// watchIdle looks those up that nobody uses: new ones at once, the others each sweep,
// some at a time; and every one of them when it is woken, no more often than allAgain.
func (v *Vault) watchIdle(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	wrong := complaint{log: v.log, what: "grants that nobody uses cannot be looked up"}
	all, next := false, time.Time{} // all are to be looked up, no earlier than next
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-v.idle:
			all = true
		case <-v.fresh:
		case <-timer.C:
		}
		wait := v.poll
		if v.proven(ctx) == nil { // else watchUsed says so
			every := all && !time.Now().Before(next)
			if every {
				all, next = false, time.Now().Add(allAgain)
			}
			wrong.about(ctx, v.idleRound(ctx, every))
			if all {
				wait = min(wait, time.Until(next))
			}
		}
		timer.Reset(wait)
	}
}

// idleRound: what is new is asked about as fast as what is in use, because nobody gets
// an answer before it.
func (v *Vault) idleRound(ctx context.Context, all bool) error {
	ctx, cancel := context.WithTimeout(ctx, sweep)
	defer cancel()
	fresh, others := v.table.idle(all)
	odd := v.lookUp(ctx, fresh, parallel, func(entry) {})
	return cmp.Or(v.lookUp(ctx, others, gentle, func(entry) {}), odd)
}

// watchIndex reads the index at the start, every sweep and when it is woken.
func (v *Vault) watchIndex(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	wrong := complaint{log: v.log, what: "the index of grants cannot be read"}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-v.list:
		}
		err := v.readIndex(ctx)
		if wrong.about(ctx, err) {
			v.table.silent(err)
			op.Sleep(ctx, failedAgain)
			timer.Reset(0)
			continue
		}
		timer.Reset(sweep)
	}
}

// readIndex reads every entry, and takes those that are gone for revoked. Before it
// and after it the server must be the one that it was: a reading between two answers
// of something else counts as none.
func (v *Vault) readIndex(ctx context.Context) error {
	started := v.table.now()
	if err := v.session.Prove(ctx); err != nil {
		return err
	}
	people, err := v.listing(ctx, "list grants", v.names.Grants+"/metadata/")
	if err != nil {
		return err
	}
	seen := map[protocol.GrantID]bool{}
	var mu sync.Mutex
	reads, rctx := errgroup.WithContext(ctx)
	reads.SetLimit(parallel)
	for _, folder := range people {
		p, err := protocol.ParseID[protocol.PrincipalKind](trimSlash(folder))
		if err != nil {
			continue // not a person's
		}
		reads.Go(func() error {
			ids, err := v.readFolder(rctx, p)
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				seen[id] = true
			}
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return err
	}
	if err := v.session.Prove(ctx); err != nil {
		return err
	}
	for _, e := range v.table.unseen(seen) {
		v.reread(ctx, e)
	}
	v.table.whole(started)
	v.tell.Ring()
	v.fresh.Ring()
	return nil
}

// readFolder reads the entries of one person.
func (v *Vault) readFolder(ctx context.Context, p protocol.PrincipalID) (ids []protocol.GrantID, err error) {
	names, err := v.listing(ctx, "list grants", v.names.Grants+"/metadata/"+p.String()+"/")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		id, err := protocol.ParseID[protocol.GrantKind](name)
		if err != nil {
			continue // somebody else's entry
		}
		r, found, err := v.readRecord(ctx, p, id)
		if err != nil {
			return nil, err
		}
		if found {
			v.adopt(ctx, r)
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// adopt takes what an entry says: a new grant, or the end of one.
func (v *Vault) adopt(ctx context.Context, r record) {
	id := r.grant.ID
	known, isKnown := v.table.get(id)
	switch {
	case r.spoiled && !isKnown:
		v.log.WarnContext(ctx, "an entry in the index of grants is no grant", "grant", id)
	case r.spoiled:
		v.gone(ctx, known, "its entry in the index was changed by hand, so that it is none")
	case isKnown && known.grant.RevokedAt.IsZero():
		v.compare(ctx, known, r)
	case r.finished() && !known.unfinished && time.Since(r.grant.RevokedAt) > revokedTTL:
		v.prune(ctx, r)
	case isKnown && !r.finished():
		v.holdsEnd(ctx, known)
	case isKnown: // it ended
	case r.over():
		v.believe(ctx, r)
	default:
		e := r.entry
		e.grant.RevokedAt = time.Time{}
		if !v.table.put(e) { // it was made here in this moment
			return
		}
		if !r.alive() {
			v.gone(ctx, e, "its entry in the index says so")
		}
	}
}

// holdsEnd makes sure that the server holds the end of a grant.
func (v *Vault) holdsEnd(ctx context.Context, known entry) {
	if _, err := v.lost(ctx, known); err != nil {
		v.log.WarnContext(ctx, "whether the end of a grant is in the index is asked again", "grant", known.grant.ID, "error", err)
	}
}

// believe an entry that says that its grant ended, which is refused from now on. Where
// no broker wrote it, its token may live, and is ended.
func (v *Vault) believe(ctx context.Context, r record) {
	e := r.entry
	e.unfinished = !r.finished()
	if v.table.put(e) && e.unfinished {
		v.log.InfoContext(ctx, "the index says that a grant ended, and no broker wrote it there: its token is ended", "grant", e.grant.ID)
		v.clean.Ring()
	}
}

// compare a grant that lives with what its entry says now. Only its end may be
// written there: whatever else is changed ends it, and what ends is the grant that is
// known, not what somebody has written over it.
func (v *Vault) compare(ctx context.Context, known entry, r record) {
	switch {
	case r.over():
		v.gone(ctx, known, or(r.how, "it was revoked at another broker"))
	case !r.alive():
		v.gone(ctx, known, "its entry in the index says so")
	case !known.grant.SameAs(r.grant):
		v.gone(ctx, known, "its entry in the index was changed by hand")
	case known.accessor != r.accessor && v.renewal(ctx, known, r):
	case known.accessor != r.accessor:
		v.gone(ctx, known, "its entry in the index was changed by hand, to name another token")
	}
}

// reread takes what one entry says by itself: one that a reading of the whole index did
// not find is made sure of so.
func (v *Vault) reread(ctx context.Context, e entry) {
	r, found, err := v.readRecord(ctx, e.grant.Principal, e.grant.ID)
	switch {
	case err != nil, found && r.says(e):
	case found && v.session.Prove(ctx) == nil:
		v.adopt(ctx, r)
	case found, v.lags(ctx, e), v.session.Prove(ctx) != nil:
	default:
		v.gone(ctx, e, "its entry in the index was deleted")
	}
}

// gone ends a grant: in memory first, then whoever must know, then in the server.
func (v *Vault) gone(ctx context.Context, e entry, how string) {
	if _, first := v.table.end(e.grant.ID, now(), how); !first {
		return
	}
	v.openGrants.drop(e.grant.ID)
	v.log.InfoContext(ctx, "grant ended", "grant", e.grant.ID, "tenant", e.grant.Tenant, "how", how)
	v.tell.Ring()
	v.clean.Ring()
}

// prune forgets an entry that ended long ago.
func (v *Vault) prune(ctx context.Context, r record) {
	if err := v.delete(ctx, "forget old grants", v.indexPath("metadata", r.grant.Principal, r.grant.ID)); err != nil {
		v.log.WarnContext(ctx, "an old entry stays in the index", "grant", r.grant.ID, "error", err)
		return
	}
	v.forget(r.grant.ID)
}

// forget a grant whose entry is gone for good.
func (v *Vault) forget(id protocol.GrantID) {
	v.table.forget(id)
	for _, from := range v.sources {
		from.written.forget(id)
	}
}
