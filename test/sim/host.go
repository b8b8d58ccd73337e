package sim

import (
	"context"
	"strconv"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/server/engine"
	"bivouac/server/scheduler"
	"bivouac/server/store"
)

// hosts of a run share the store.
const hostCount = 2

// host is one server: one engine at a time, beside others on the one store.
type host struct {
	party
	n        int
	thumb    string // of its key: the presenter of its capabilities
	engine   *engine.Engine
	ops      *ops
	ticks    []*ticker
	replica  protocol.ReplicaID
	toBroker *link
	feed     *link // the broker's way to it
	base     *link // its way to the database
	hints    []hint
}

// ticker is one loop of the engine and its next pass.
type ticker struct {
	engine.Tick
	next  *event
	since time.Duration // of the looks that are counted
	looks int
}

// mostLooks of a tick that finds nothing, or fails, in one second: more is as fast
// as it can.
const mostLooks = 100

// idle counts a look that found nothing, and reports one too many.
func (t *ticker) idle(now time.Duration) bool {
	if now-t.since > time.Second {
		t.since, t.looks = now, 0
	}
	t.looks++
	return t.looks > mostLooks
}

// hint is the wake-up of one topic in one life of a host.
type hint struct {
	topic store.Topic
	wake  <-chan struct{}
	stop  func()
}

func newHost(s *Sim, n int) *host {
	name := "server" + strconv.Itoa(n)
	h := &host{party: party{s: s, name: name}, n: n, thumb: "thumb-" + name}
	h.boot, h.die = h.begin, h.end
	h.toBroker, h.feed, h.base = s.newLink(name+"-broker"), s.newLink("broker-"+name), s.newLink(name+"-database")
	h.replica = protocol.NewID[protocol.ReplicaKind](time.Now(), s.entropy)
	return h
}

// begin makes a new engine on the same store, as a start of the process does;
// sometimes as another replica.
func (h *host) begin() {
	s := h.s
	if h.life > 1 && s.chance(s.plan.newReplica) {
		h.replica = protocol.NewID[protocol.ReplicaKind](time.Now(), s.entropy)
		s.note("%s is another replica now: %s", h.name, h.replica)
	}
	h.ops = &ops{h: h}
	h.engine = engine.New(engine.Config{
		Store: s.store, Broker: &port{s, h}, Scheduler: scheduler.Embedded{}, Signer: &signing{s, h}, Replica: h.replica,
		Thumbprint: h.thumb, Elapsed: s.now, Ops: h.ops, Entropy: s.entropy, Blobs: "shared",
		Limits: engine.Limits{ReplicaTTL: s.plan.replicaTTL},
	})
	h.ticks = nil
	topics := map[store.Topic]bool{}
	for _, t := range h.engine.Ticks() {
		tk := &ticker{Tick: t}
		h.ticks = append(h.ticks, tk)
		h.schedule(tk, s.between(0, 20*time.Millisecond))
		for _, topic := range t.Topics {
			if !topics[topic] {
				topics[topic] = true
				wake, stop := s.store.Subscribe(topic)
				h.hints = append(h.hints, hint{topic, wake, stop})
			}
		}
	}
}

// end drops the engine with everything that it held in memory.
func (h *host) end() {
	h.ops.kill()
	for _, i := range h.hints {
		i.stop()
	}
	h.engine, h.ticks, h.hints = nil, nil, nil
}

// schedule brings a pass forward; it never puts one off.
func (h *host) schedule(t *ticker, in time.Duration) {
	if t.next != nil && !t.next.off && t.next.at <= h.s.now()+in {
		return
	}
	t.next.cancel()
	t.next = h.after(in, "", func() {
		t.next = nil
		h.pass(t)
	})
}

// pass runs one tick once. An error of it is a bug, unless the store was made to
// fail under it.
func (h *host) pass(t *ticker) {
	ctx := h.mortal()
	worked, err := t.Do(ctx)
	switch {
	case ctx.died:
		h.crash("tick " + t.Name)
		return
	case err != nil && !h.s.excused:
		h.s.violate("tick %s of %s failed: %v", t.Name, h.name, err)
		return
	case err != nil:
		h.s.note("tick %s of %s fails: %v", t.Name, h.name, err)
	case worked:
		h.s.note("tick %s of %s", t.Name, h.name)
	}
	if !worked && t.idle(h.s.now()) {
		h.s.violate("liveness: tick %s of %s looks %d times a second and finds nothing: %v", t.Name, h.name, t.looks, err)
		return
	}
	if t.Name == "activate" && worked && !h.reach(fault.ServerTurnActivated) {
		return
	}
	wait := h.s.plan.poll
	switch {
	case worked && err == nil:
		wait = 0
	case t.Due != nil && (err == nil || t.Eager):
		wait = min(wait, max(t.Due(), time.Millisecond))
	}
	h.schedule(t, wait)
}

// topics that wake the simulation's own readers.
var topics = []store.Topic{store.TopicTurns, store.TopicActions, store.TopicApprovals, store.TopicCleanups,
	store.TopicAttempts, store.TopicMail, store.TopicEvents, store.TopicFloors}

// wake lets commits and inner wake-ups bring ticks forward. Those of commits are
// hints: some are lost, and all of them while the database is away.
func (h *host) wake() {
	if !h.up {
		return
	}
	touched := map[store.Topic]bool{}
	for _, i := range h.hints {
		select {
		case <-i.wake:
			touched[i.topic] = h.base.up() && !h.s.hintLost()
		default:
		}
	}
	for _, t := range h.ticks {
		woken := false
		for _, topic := range t.Topics {
			woken = woken || touched[topic]
		}
		select {
		case <-t.Wake:
			woken = true
		default:
		}
		if woken {
			h.schedule(t, h.s.between(0, 3*time.Millisecond))
		}
	}
}

// call runs one use case in this life; a server that dies in it answers nothing.
func (h *host) call(name string, answer func(error), do func(ctx context.Context, e *engine.Engine) error) {
	ctx := h.mortal()
	err := do(ctx, h.engine)
	if ctx.died {
		h.crash(name)
		return
	}
	switch {
	case err != nil && protocol.CodeOf(err) == protocol.CodeInternal && !h.s.excused:
		h.s.violate("%s fails inside %s: %v", name, h.name, err)
		return
	case err != nil:
		h.s.note("%s refuses %s: %v", h.name, name, err)
	case !h.s.healed && h.s.chance(h.s.plan.midCrash):
		h.crash(name + ", committed and not answered")
		return
	}
	answer(err)
}

// mortal is the context of one step that may end between two of its
// transactions, as a process does: the store withdraws the next one.
func (h *host) mortal() *mortal {
	h.s.acting, h.s.excused = h, false
	m := &mortal{Context: context.Background(), h: h, left: -1}
	if !h.s.healed && h.s.chance(h.s.plan.midCrash) {
		m.left = h.s.rng.IntN(25)
	}
	return m
}

type mortal struct {
	context.Context
	h    *host
	left int // questions of the store to go; negative: it lives
	died bool
}

var errAway = protocol.Errorf(protocol.CodeUnavailable, "the database cannot be reached")

// Err is asked by the store before each transaction.
func (m *mortal) Err() error {
	switch {
	case m.left == 0:
		m.died = true
		return errKilled
	case !m.h.base.up():
		m.h.s.excused = true
		return errAway
	case m.left > 0:
		m.left--
	}
	return nil
}

// serve is one call to a server over a link.
func serve[T any](h *host, c call, do func(ctx context.Context, e *engine.Engine) (T, error), done func(T, error)) {
	c.to = &h.party
	rpc(c, func(answer func(T, error)) {
		var v T
		h.call(c.name, func(err error) { answer(v, err) }, func(ctx context.Context, e *engine.Engine) (err error) {
			v, err = do(ctx, e)
			return err
		})
	}, done)
}
