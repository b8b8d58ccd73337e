package vaultpolicy

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/vaultpolicy/audit"
)

// source of the audit's lines, and how accessors are written in them.
type source struct {
	follow  func(ctx context.Context, woken func(audit.Change)) error
	written *accessors
}

func sources(a Audit, grants string, log *slog.Logger) (out []source) {
	reader := audit.Reader{Grants: grants}
	if a.File != "" {
		out = append(out, source{audit.File{Path: a.File, Reader: reader, Log: log}.Run, newAccessors()})
	}
	if a.Socket != "" {
		out = append(out, source{audit.Socket{Path: a.Socket, Reader: reader, Log: log}.Run, newAccessors()})
	}
	return out
}

// audited wakes what a line of the audit is about: the grants that it names, before and
// beside all look-ups of others, or everything where it names none.
func (v *Vault) audited(written *accessors, c audit.Change) {
	switch {
	case c.Matter == audit.Asked:
		written.line(c.Request, c.Accessor)
	case c.Matter == audit.Index && c.Grant != "":
		v.named.add(named{entry: true}, c.Grant)
	case c.Matter == audit.Index:
		v.list.Ring()
	case c.Matter == audit.Tokens && c.Accessor != "":
		v.revoked(written, c.Accessor)
	case c.Matter == audit.Tokens:
		ids := v.table.ofEntity(c.Entity)
		v.named.add(named{token: true, again: quickRounds}, ids...)
		if len(ids) == 0 {
			v.wake()
		}
	}
}

// revoked looks after the grant of whose token an audit says that it was revoked. A
// token that is none of those that live is nobody's here, or of a grant that ended.
func (v *Vault) revoked(written *accessors, accessor string) {
	if id, ok := written.find(accessor); ok {
		v.named.add(named{token: true, again: quickRounds}, id)
		return
	}
	if !written.complete() {
		v.wake()
	}
}

// follow one more source: it learns how the accessors of the grants are written there.
func (v *Vault) follow(from ...source) {
	v.sources = append(v.sources, from...)
	for _, s := range from {
		v.table.tells(s.written)
	}
}

// lookedUp takes what tells later how the audit writes the accessor of a grant.
func (v *Vault) lookedUp(request string, e entry) {
	for _, from := range v.sources {
		from.written.answer(request, answered{e.grant.ID, e.accessor})
	}
}

// named is what of a grant is to be asked about.
type named struct {
	token, entry bool
	again        int       // how often, where its token lives; zero: once, unless it was just now
	at           time.Time // not before; zero: now
}

func (n named) and(m named) named {
	n.token, n.entry, n.again = n.token || m.token, n.entry || m.entry, max(n.again, m.again)
	if m.at.Before(n.at) {
		n.at = m.at
	}
	return n
}

// askedAtOnce bounds the grants that are asked about side by side. Each is once at a time;
// so many would have to hang to keep one that was revoked waiting, and then the poll's
// loops have it.
const askedAtOnce = 8 * parallel

// queue of grants that somebody named: the audit, or who comes to use one.
type queue struct {
	bell op.Bell
	mu   sync.Mutex
	all  map[protocol.GrantID]named
	busy map[protocol.GrantID]bool // asked about in this moment: once more after it
}

func newQueue() *queue {
	return &queue{bell: op.NewBell(), all: map[protocol.GrantID]named{}, busy: map[protocol.GrantID]bool{}}
}

func (q *queue) add(what named, ids ...protocol.GrantID) {
	if len(ids) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range ids {
		if was, ok := q.all[id]; ok {
			q.all[id] = was.and(what)
		} else {
			q.all[id] = what
		}
	}
	q.bell.Ring()
}

// one is a grant with what of it is to be asked about.
type one struct {
	id   protocol.GrantID
	what named
}

// take those that are to be asked about now, those first that may have ended, and say how
// long none of the others is. Who takes one says when it is done.
func (q *queue) take() (some []one, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	wait = sweep
	for id, what := range q.all {
		left := time.Until(what.at)
		switch {
		case left > 0:
			wait = min(wait, left)
		case !q.busy[id]: // done rings for one that is
			some = append(some, one{id, what})
		}
	}
	slices.SortFunc(some, func(a, b one) int {
		return cmp.Or(cmp.Compare(b.what.again, a.what.again), cmp.Compare(a.id, b.id))
	})
	some = some[:min(len(some), askedAtOnce-len(q.busy))] // done rings for the rest
	for _, x := range some {
		q.busy[x.id] = true
		delete(q.all, x.id)
	}
	return some, wait
}

// done with one that was taken.
func (q *queue) done(id protocol.GrantID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, id)
	if len(q.all) > 0 {
		q.bell.Ring()
	}
}

// watchNamed asks about grants that somebody named, once the server and the login are
// proven, or were as lately as for a look-up of a round: they are proven again before one
// ends. What is named while some are asked about is asked beside them: it waits for no
// round, and for no other's answer. However often one is named, it is asked about once at
// a time.
func (v *Vault) watchNamed(ctx context.Context) error {
	timer := time.NewTimer(sweep)
	defer timer.Stop()
	var asks errgroup.Group
	for {
		select {
		case <-ctx.Done():
			return asks.Wait() // none fails
		case <-v.named.bell:
		case <-timer.C:
		}
		some, wait := v.named.take()
		timer.Reset(wait)
		if len(some) == 0 {
			continue
		}
		for ctx.Err() == nil && !v.table.heardWithin(min(2*v.poll, roundIn)) && v.proven(ctx) != nil { // watchUsed says so
			op.Sleep(ctx, failedAgain)
		}
		people := newPersons()
		for _, x := range some {
			asks.Go(func() error {
				defer v.named.done(x.id)
				v.askNamed(ctx, x, people)
				return nil
			})
		}
	}
}

// askNamed asks about one. Where its token lives it is asked about again soon: a server
// may go on ending tokens after it has answered, and a standby hears of it later. Then
// polling has it.
func (v *Vault) askNamed(ctx context.Context, x one, people *persons) {
	wait := quickAgain
	v.ask(ctx, x.id, x.what, people, func(error) { wait = failedAgain })
	if x.what.again > 1 && v.table.lives(x.id) {
		v.named.add(named{token: x.what.token, again: x.what.again - 1, at: time.Now().Add(wait)}, x.id)
	}
}

func (v *Vault) ask(ctx context.Context, id protocol.GrantID, what named, people *persons, odd func(error)) {
	e, ok := v.table.get(id)
	switch {
	case !ok:
		v.list.Ring() // another broker's
		return
	case !e.grant.RevokedAt.IsZero():
		if what.entry {
			v.holdsEnd(ctx, e)
		}
		return
	}
	if what.token && (what.again > 0 || e.tried == 0 || v.table.now()-e.tried > failedAgain) {
		v.table.try(e)
		v.examine(ctx, e, people, odd)
	}
	if what.entry {
		v.reread(ctx, e)
	}
}
