package sim

import (
	"time"

	"bivouac/edge/fault"
)

// party is a process that can die. What it scheduled in one life does not happen
// in another.
type party struct {
	s    *Sim
	name string
	up   bool
	life int
	thaw time.Duration // until then it does nothing
	on   *party        // the machine that it sleeps with, if any
	boot func()        // begins a life
	die  func()        // what a kill leaves undone
}

// after schedules a step of this life.
func (p *party) after(d time.Duration, name string, do func()) *event {
	life := p.life
	return p.s.after(d, name, func() {
		p.awake(func() {
			if p.up && p.life == life {
				do()
			}
		})
	})
}

// awake does it now, or when the party thaws.
func (p *party) awake(do func()) {
	thaw := p.thaw
	if p.on != nil {
		thaw = max(thaw, p.on.thaw)
	}
	if left := thaw - p.s.now(); left > 0 {
		p.s.after(left, "", func() { p.awake(do) })
		return
	}
	do()
}

// frozen reports a party that does nothing now.
func (p *party) frozen() bool { return p.thaw > p.s.now() }

// start begins a life, unless one is under way.
func (p *party) start() {
	if p.up {
		return
	}
	p.up = true
	p.life++
	p.s.note("%s starts, life %d", p.name, p.life)
	p.boot()
}

// crash ends a life at once, and begins the next one after a while.
func (p *party) crash(at string) {
	if !p.up {
		return
	}
	s := p.s
	s.note("%s is killed at %s", p.name, at)
	s.crashes++
	s.fault(faultCrash)
	p.up = false
	p.die()
	s.after(s.downtime(), p.name+" restart", p.start)
}

// downtime is short for a supervised process, and sometimes longer than an
// authority ttl or a retention.
func (s *Sim) downtime() time.Duration {
	switch {
	case s.healed:
		return s.between(50*time.Millisecond, time.Second)
	case s.chance(0.1):
		return s.between(20*time.Second, 100*time.Second)
	}
	return s.between(50*time.Millisecond, 6*time.Second)
}

// reach is a labelled step of a party: the plan may kill it there. It reports
// whether the party lives on.
func (p *party) reach(l fault.Label) bool {
	p.s.labels[l]++
	if p.s.healed || !p.s.chance(p.s.plan.labelCrash) {
		return p.up
	}
	p.s.killed[l]++
	p.crash(string(l))
	return false
}

// freezeAt stops the party for a while, as a suspended machine or a stopped
// process is: it loses nothing, and its clocks go on.
func (p *party) freezeAt(d time.Duration) {
	p.s.after(d, p.name+" freezes", func() {
		p.s.fault(faultSuspend)
		p.thaw = p.s.now() + pick(p.s, p.s.between(time.Second, 14*time.Second), p.s.between(14*time.Second, 100*time.Second))
		p.s.note("%s does nothing until %.3f", p.name, p.thaw.Seconds())
	})
}

// crashAt kills the party somewhere in its life, whatever it is doing then.
func (p *party) crashAt(d time.Duration) {
	p.s.after(d, p.name+" crash", func() { p.crash("any step") })
}
