package sim

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
)

// ops is the op runner of one life of the server: each op is a coroutine, so
// that it waits for an answer of the network while other steps happen, and yet
// everything runs in one goroutine.
type ops struct {
	h    *host
	live []*op
}

// op is one long call of the engine.
type op struct {
	key    string
	fn     func(context.Context)
	ctx    context.Context
	cancel context.CancelCauseFunc
	next   func() (*question, bool) // runs it to its next question
	stop   func()
	asked  *question
	begun  bool
	over   bool
}

// question is what an op waits for; ask sends it out.
type question struct {
	ask      func(answer func(any, error))
	value    any
	err      error
	answered bool
}

// asking is the context key under which an op finds how it asks.
type asking struct{}

var (
	errKilled  = protocol.Errorf(protocol.CodeUnavailable, "the server was killed")
	errStopped = protocol.Errorf(protocol.CodeCancelled, "the op was stopped")
)

func (o *ops) find(key string) *op {
	i := slices.IndexFunc(o.live, func(p *op) bool { return p.key == key })
	if i < 0 {
		return nil
	}
	return o.live[i]
}

// Start makes fn an op; its first step comes soon.
func (o *ops) Start(key string, fn func(ctx context.Context)) bool {
	if o.find(key) != nil {
		return false
	}
	p := &op{key: key, fn: fn}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	o.live = append(o.live, p)
	o.h.after(o.h.s.between(0, time.Millisecond), "op "+key, func() { o.begin(p) })
	return true
}

// Stop cancels an op; it sees so in a later step.
func (o *ops) Stop(key string) {
	if p := o.find(key); p != nil {
		p.cancel(errStopped)
		o.h.after(0, "op "+key+" stopped", func() { o.answer(p, p.asked, nil, errStopped) })
	}
}

// Running reports an op that has not ended.
func (o *ops) Running(key string) bool { return o.find(key) != nil }

// Run is for a server; here the queue runs ops.
func (o *ops) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (o *ops) begin(p *op) {
	if p.begun || p.over {
		return
	}
	p.begun = true
	p.next, p.stop = iter.Pull(func(yield func(*question) bool) {
		p.fn(context.WithValue(p.ctx, asking{}, yield))
	})
	o.step(p)
}

// step runs an op until it asks or ends.
func (o *ops) step(p *op) {
	q, more := p.next()
	if !more {
		o.ended(p)
		return
	}
	p.asked = q
	if p.ctx.Err() != nil {
		o.answer(p, q, nil, errStopped)
		return
	}
	q.ask(func(v any, err error) { o.answer(p, q, v, err) })
}

func (o *ops) answer(p *op, q *question, v any, err error) {
	if p.over || q == nil || q.answered {
		return
	}
	q.answered, q.value, q.err = true, v, err
	o.step(p)
}

// labelOf is the labelled step that the end of an op is: what it learned is in
// memory and not in the store.
func labelOf(key string) fault.Label {
	switch kind, _, _ := strings.Cut(key, "/"); kind {
	case "model":
		return fault.ServerModelAnswered
	case "invoke":
		return fault.ServerOutcomeReceived
	}
	return ""
}

func (o *ops) ended(p *op) {
	p.over = true
	p.cancel(nil)
	o.live = slices.DeleteFunc(o.live, func(x *op) bool { return x == p })
	if l := labelOf(p.key); l != "" {
		o.h.reach(l)
	}
}

// kill ends all ops with the server. One that was just started may have sent
// its request before the process died.
func (o *ops) kill() {
	for _, p := range slices.Clone(o.live) {
		if !p.begun && o.h.s.chance(0.5) {
			o.h.s.note("op %s sends before the end", p.key)
			o.begin(p)
		}
		p.over = true
		p.cancel(errKilled)
		if p.stop != nil {
			p.stop()
		}
	}
	o.live = nil
}

// awaits reports an op under one of the keys; a person's answer is waited for
// without any. INV-7.
func (o *ops) awaits(prefix, id string) bool {
	return slices.ContainsFunc(o.live, func(p *op) bool { return p.key == prefix+id })
}
