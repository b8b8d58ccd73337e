package engine

import (
	"context"
	"errors"
	"reflect"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/op"
	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// Tick is one loop's body. Do makes one pass: it never blocks on anything but
// the store, and says whether there was something to do. A simulation calls Do
// itself; Run calls it after each wake-up and, at the latest, every Limits.Poll.
type Tick struct {
	Name string
	Do   func(ctx context.Context) (worked bool, err error)
	// Topics whose commits may give it something to do.
	Topics []store.Topic
	// Wake is a wake-up from inside the engine; nil: none.
	Wake op.Bell
	// Due is how soon it has something to do by time alone; nil: at the poll.
	Due func() time.Duration
	// Eager keeps to Due also after an error.
	Eager bool
}

// tickBatch is how many rows one pass takes where nothing else bounds it: what a view
// reads stays small, and a pass that was full is followed by the next at once.
const tickBatch = 100

// Ticks are all loops of the engine, in the order in which a turn meets them.
func (e *Engine) Ticks() []Tick {
	on := func(t store.Topic) []store.Topic { return []store.Topic{t} }
	var hints op.Bell
	if e.cfg.Allocations != nil {
		hints = e.cfg.Allocations.Bell()
	}
	return []Tick{
		{Name: "floors", Do: e.tickFloors, Topics: on(store.TopicFloors)},
		{Name: "describe", Do: e.tickDescribe, Due: e.describeIn},
		{Name: "takeover", Do: e.tickTakeover, Wake: e.orphans},
		{Name: "activate", Do: e.tickActivate, Topics: on(store.TopicTurns), Wake: e.view.wake},
		{Name: "calls", Do: e.tickCalls, Topics: on(callsOf(e.cfg.Replica))},
		{Name: "model", Do: e.tickModel, Wake: e.due.bell, Due: e.pauses.next},
		{Name: "settle", Do: e.tickSettle, Wake: e.settled.wake, Due: e.settled.retryIn},
		{Name: "dispatch", Do: e.tickDispatch, Topics: on(store.TopicActions)},
		{Name: "place", Do: e.led(e.tickPlace), Topics: on(store.TopicAttempts), Due: e.pauses.next},
		{Name: "allocate", Do: e.led(e.tickAllocate), Topics: on(store.TopicAttempts), Wake: hints},
		{Name: "approvals", Do: e.tickApprovals, Topics: on(store.TopicApprovals), Wake: e.rested},
		{Name: "reap", Do: e.tickReap, Due: e.leases.next},
		{Name: "reconcile", Do: e.tickReconcile, Wake: e.doubts, Due: e.pauses.next},
		{Name: "deadlines", Do: e.led(e.tickDeadlines)},
		{Name: "revoked", Do: e.tickRevoked, Wake: e.floors.wake},
		{Name: "sessions", Do: e.led(e.tickSessions)},
		{Name: "owners", Do: e.tickOwners, Due: e.replicas.dueIn, Eager: true},
		{Name: "usage", Do: e.tickUsage, Wake: e.hungry},
		{Name: "cleanup", Do: e.tickCleanup, Topics: on(store.TopicCleanups), Wake: e.closed, Due: e.pauses.next},
		{Name: "restored", Do: e.led(e.tickRestored)},
		{Name: "sweep", Do: e.led(e.tickSweep)},
		{Name: "seal", Do: e.led(e.tickSeal)},
	}
}

// runTick runs one tick until ctx ends: again at once while there is work, then
// after a wake-up, when it is due, or at the poll.
func (e *Engine) runTick(ctx context.Context, t Tick) error {
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}, {Dir: reflect.SelectRecv}}
	for _, topic := range t.Topics {
		wake, stop := e.cfg.Store.Subscribe(topic)
		defer stop()
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(wake)})
	}
	if t.Wake != nil {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(t.Wake)})
	}
	for ctx.Err() == nil {
		worked, err := t.Do(ctx)
		var over *ended
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &over):
			return over.error
		case err != nil:
			e.cfg.Log.Error("tick failed; it runs again", "tick", t.Name, "error", err)
		case worked:
			continue
		}
		timer := time.NewTimer(e.waitFor(t, err))
		cases[1].Chan = reflect.ValueOf(timer.C)
		chosen, _, _ := reflect.Select(cases)
		timer.Stop()
		if chosen == 0 {
			return nil
		}
	}
	return nil
}

// waitFor is how long a tick without work or with an error rests.
func (e *Engine) waitFor(t Tick, err error) time.Duration {
	wait := e.cfg.Limits.Poll
	if t.Due != nil && (err == nil || t.Eager) {
		wait = min(wait, max(t.Due(), time.Millisecond))
	}
	return wait
}

// lostRace reports a refusal that only says that somebody else was faster: the state
// moved on between reading and writing. The next pass sees it.
func lostRace(err error) bool {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == protocol.CodeConflict || e.Code == protocol.CodeStaleFence || e.Code == protocol.CodeNotFound
}

// notFound reports that there is no such thing for the caller.
func notFound(err error) bool { return protocol.CodeOf(err) == protocol.CodeNotFound }

// each applies do to every item and goes on after one that fails, so that one
// sick row never stops the others. It reports whether any was worked on, and the
// first error that is not a lost race. A lost race is no work: who won it commits,
// and that wakes the tick; one that is lost forever must not keep it running.
func each[T any](items []T, do func(T) (bool, error)) (worked bool, first error) {
	for _, item := range items {
		did, err := do(item)
		if lostRace(err) {
			did, err = false, nil
		}
		if err != nil && first == nil {
			first = err
		}
		worked = worked || did
	}
	return worked, first
}

// spread is each for items that have nothing to do with one another: so many at
// once, that their transactions share a commit, and the last does not wait for the
// disk as often as there are items. One at a time it is each.
func spread[T any](atOnce int, items []T, do func(T) (bool, error)) (worked bool, first error) {
	if atOnce <= 1 || len(items) <= 1 {
		return each(items, do)
	}
	type result struct {
		did bool
		err error
	}
	results := make([]result, len(items))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, item := range items {
		g.Go(func() error {
			results[i].did, results[i].err = do(item)
			return nil // every item is tried
		})
	}
	_ = g.Wait()
	return each(results, func(r result) (bool, error) { return r.did, r.err })
}
