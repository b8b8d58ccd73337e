package sim

import (
	"time"

	"bivouac/edge/protocol"
)

// link is a path between two parties, with the times at which it is cut.
type link struct {
	s     *Sim
	name  string
	cuts  []window
	fault rates
}

type window struct{ from, to time.Duration }

// rates are the chances of one message.
type rates struct {
	drop, double, slow, late float64
}

// up reports a path that is not cut now.
func (l *link) up() bool {
	if l.s.healed {
		return true
	}
	now := l.s.now()
	for _, w := range l.cuts {
		if now >= w.from && now < w.to {
			return false
		}
	}
	return true
}

// delay of one message: usually a network's, sometimes long, sometimes beyond
// every timeout.
func (l *link) delay() time.Duration {
	switch {
	case l.s.healed:
	case l.s.chance(l.fault.late):
		return l.s.between(2*time.Second, 90*time.Second)
	case l.s.chance(l.fault.slow):
		return l.s.between(50*time.Millisecond, 3*time.Second)
	}
	return l.s.between(200*time.Microsecond, 15*time.Millisecond)
}

// send carries one message: zero, one or two copies of it arrive, in any order
// with others. The second copy is a stray.
func (l *link) send(name string, arrive func(stray bool)) {
	if !l.up() || !l.s.healed && l.s.chance(l.fault.drop) {
		l.s.note("%s: %s is lost", l.name, name)
		return
	}
	deliver := func(stray bool) {
		l.s.after(l.delay(), name, func() {
			if l.up() { // cut while it was under way
				arrive(stray)
			}
		})
	}
	deliver(false)
	if !l.s.healed && l.s.chance(l.fault.double) {
		l.s.note("%s: %s is doubled", l.name, name)
		deliver(true)
	}
}

// call is one request from a party to another.
type call struct {
	over    *link
	from    *party
	to      *party
	name    string
	timeout time.Duration
}

// rpc sends a request and takes its answer. serve runs at the other side and may
// answer then or later; done runs here, once: with the answer, or without one at
// the timeout, and never in a later life. The answer to a stray copy of the
// request goes nowhere.
func rpc[T any](c call, serve func(answer func(T, error)), done func(T, error)) {
	var none T
	l, name, life, over := c.over, c.name, c.from.life, false
	finish := func(v T, err error) {
		c.from.awake(func() {
			if !over && c.from.up && c.from.life == life {
				over = true
				done(v, err)
			}
		})
	}
	deadline := c.from.after(c.timeout, "", func() {
		if !over {
			l.s.note("%s: %s times out", l.name, name)
		}
		finish(none, protocol.Errorf(protocol.CodeUnavailable, "%s did not answer", name))
	})
	l.send(name, func(stray bool) {
		reply := func(v T, err error) {
			if stray {
				return
			}
			l.send(name+" answer", func(bool) {
				deadline.cancel()
				finish(v, err)
			})
		}
		c.to.awake(func() {
			if !c.to.up {
				reply(none, protocol.Errorf(protocol.CodeUnavailable, "%s: connection refused", name))
				return
			}
			serve(reply)
		})
	})
}
