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
	seen  map[int]bool // cuts that somebody ran into
	fault rates
	last  time.Duration // when the latest message so far arrives
}

func (s *Sim) newLink(name string) *link {
	return &link{s: s, name: name, cuts: s.cuts(), seen: map[int]bool{}, fault: s.plan.network}
}

type window struct{ from, to time.Duration }

// noticeable is by how much a message must overtake another to count as a fault:
// less is what any network does.
const noticeable = 20 * time.Millisecond

// rates are the chances of one message.
type rates struct {
	drop, double, slow, late float64
}

// up reports a path that is not cut now.
func (l *link) up() bool {
	if l.s.healed {
		return true
	}
	i := inside(l.cuts, l.s.now())
	if i >= 0 && !l.seen[i] {
		l.seen[i] = true
		l.s.note("%s is cut for %s", l.name, l.cuts[i].to-l.s.now())
		l.s.fault(faultPartition)
	}
	return i < 0
}

// delay of one message: usually a network's, sometimes long, sometimes beyond
// every timeout.
func (l *link) delay() time.Duration {
	switch {
	case l.s.healed:
	case l.s.chance(l.fault.late):
		l.s.fault(faultDelay)
		return l.s.between(2*time.Second, 90*time.Second)
	case l.s.chance(l.fault.slow):
		l.s.fault(faultDelay)
		return l.s.between(50*time.Millisecond, 3*time.Second)
	}
	return l.s.between(200*time.Microsecond, 15*time.Millisecond)
}

// send carries one message: zero, one or two copies of it arrive, in any order
// with others. The second copy is a stray.
func (l *link) send(name string, once bool, arrive func(stray bool)) {
	if !l.up() {
		return
	}
	if !l.s.healed && l.s.chance(l.fault.drop) {
		l.s.note("%s: %s is lost", l.name, name)
		l.s.fault(faultDrop)
		return
	}
	deliver := func(stray bool) {
		d := l.delay()
		if at := l.s.now() + d; at+noticeable < l.last && !l.s.healed {
			l.s.fault(faultReorder)
		} else {
			l.last = at
		}
		l.s.after(d, name, func() {
			if l.up() { // cut while it was under way
				arrive(stray)
			}
		})
	}
	deliver(false)
	if !l.s.healed && l.s.chance(l.fault.double) && !once {
		l.s.note("%s: %s is doubled", l.name, name)
		l.s.fault(faultDouble)
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
	// once: its transport lets no copy of a request arrive (TLS, and no early data).
	// Who has it done again sends a request of its own.
	once bool
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
	l.send(name, c.once, func(stray bool) {
		reply := func(v T, err error) {
			if stray {
				return
			}
			l.send(name+" answer", false, func(bool) {
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
