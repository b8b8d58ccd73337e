package sim

import (
	"context"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/server/engine"
	"bivouac/server/scheduler"
	"bivouac/server/store"
)

// presenter is the thumbprint of every server's key.
const presenter = "server-thumbprint"

// host is the server: one engine at a time on the one store.
type host struct {
	party
	engine  *engine.Engine
	ops     *ops
	ticks   []*ticker
	replica protocol.ReplicaID
}

// ticker is one loop of the engine and its next pass.
type ticker struct {
	engine.Tick
	next *event
}

func newHost(s *Sim) *host {
	h := &host{party: party{s: s, name: "server"}}
	h.boot, h.die = h.begin, h.end
	h.replica = protocol.NewID[protocol.ReplicaKind](time.Now(), s.entropy)
	return h
}

// begin makes a new engine on the same store, as a start of the process does;
// sometimes as another replica.
func (h *host) begin() {
	s := h.s
	if h.life > 1 && s.chance(s.plan.newReplica) {
		h.replica = protocol.NewID[protocol.ReplicaKind](time.Now(), s.entropy)
		s.note("server is another replica now: %s", h.replica)
	}
	h.ops = &ops{h: h}
	h.engine = engine.New(engine.Config{
		Store: s.store, Broker: &port{s}, Scheduler: scheduler.Embedded{}, Signer: s.trust.signer, Replica: h.replica,
		Thumbprint: presenter, Elapsed: s.now, Ops: h.ops, Entropy: s.entropy, Alone: true,
	})
	h.ticks = nil
	for _, t := range h.engine.Ticks() {
		tk := &ticker{Tick: t}
		h.ticks = append(h.ticks, tk)
		h.schedule(tk, s.between(0, 20*time.Millisecond))
	}
}

// end drops the engine with everything that it held in memory.
func (h *host) end() {
	h.ops.kill()
	h.engine, h.ticks = nil, nil
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

// pass runs one tick once. The store works, so an error of it is a bug.
func (h *host) pass(t *ticker) {
	ctx := h.mortal()
	worked, err := t.Do(ctx)
	switch {
	case ctx.died:
		h.crash("tick " + t.Name)
		return
	case err != nil:
		h.s.violate("tick %s failed: %v", t.Name, err)
		return
	}
	if worked {
		h.s.note("tick %s", t.Name)
	}
	if t.Name == "activate" && worked && !h.reach(fault.ServerTurnActivated) {
		return
	}
	wait := h.s.plan.poll
	switch {
	case worked:
		wait = 0
	case t.Due != nil:
		wait = min(wait, max(t.Due(), time.Millisecond))
	}
	h.schedule(t, wait)
}

// topics that wake ticks and observers.
var topics = []store.Topic{store.TopicTurns, store.TopicActions, store.TopicApprovals, store.TopicCleanups,
	store.TopicAttempts, store.TopicMail, store.TopicEvents, store.TopicFloors}

// wake lets commits and inner wake-ups bring ticks forward.
func (h *host) wake(touched map[store.Topic]bool) {
	if !h.up {
		return
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
	case err != nil:
		h.s.note("server refuses %s: %v", name, err)
	case !h.s.healed && h.s.chance(h.s.plan.midCrash):
		h.crash(name + ", committed and not answered")
		return
	}
	answer(err)
}

// mortal is the context of one step that may end between two of its
// transactions, as a process does: the store withdraws the next one.
func (h *host) mortal() *mortal {
	m := &mortal{Context: context.Background(), left: -1}
	if !h.s.healed && h.s.chance(h.s.plan.midCrash) {
		m.left = h.s.rng.IntN(25)
	}
	return m
}

type mortal struct {
	context.Context
	left int // questions of the store to go; negative: it lives
	died bool
}

// Err is asked by the store before each transaction.
func (m *mortal) Err() error {
	if m.left < 0 {
		return nil
	}
	if m.left == 0 {
		m.died = true
		return errKilled
	}
	m.left--
	return nil
}

// serve is one call to the server over a link.
func serve[T any](s *Sim, c call, do func(ctx context.Context, e *engine.Engine) (T, error), done func(T, error)) {
	c.to = &s.host.party
	rpc(c, func(answer func(T, error)) {
		var v T
		s.host.call(c.name, func(err error) { answer(v, err) }, func(ctx context.Context, e *engine.Engine) (err error) {
			v, err = do(ctx, e)
			return err
		})
	}, done)
}
