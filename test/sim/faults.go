package sim

import (
	"time"

	"bivouac/edge/protocol"
)

// Kinds of fault, as a run counts them.
const (
	faultDrop      = "drop"
	faultDouble    = "duplicate"
	faultReorder   = "reorder"
	faultDelay     = "delay"
	faultPartition = "partition"
	faultCrash     = "crash"
	faultSuspend   = "suspend"
	faultClock     = "clock jump"
	faultCommit    = "commit reply lost"
	faultRace      = "commit raced"
	faultDisk      = "disk full"
	faultHint      = "wake-up lost"
	faultUpstream  = "upstream"
	faultRevoke    = "revocation"
	faultLie       = "lie"
)

func (s *Sim) fault(kind string) { s.faults[kind]++ }

// Bounds of a seed: fewer events or faults prove nothing, and fail it.
const (
	leastEvents = 500
	leastFaults = 5
	atMostLater = 8 // how often the end of the faults is put off for that
)

func (s *Sim) faultCount() int { return countFaults(s.faults) }

// countFaults leaves out what systems are built to bear every day: transactions
// that run twice, wake-ups that get lost, providers that say no.
func countFaults(all map[string]int) (n int) {
	for kind, k := range all {
		switch kind {
		case faultRace, faultHint, faultUpstream:
		default:
			n += k
		}
	}
	return n
}

// enough reports a run that has seen what a seed must see.
func (s *Sim) enough() bool { return s.named >= leastEvents && s.faultCount() >= leastFaults }

// disk is one that fills up now and then.
type disk struct {
	s    *Sim
	full []window
	seen map[int]bool // windows in which a write failed
}

func (s *Sim) newDisk() *disk {
	d := &disk{s: s, seen: map[int]bool{}}
	if !s.plan.disks {
		return d
	}
	for range s.rng.IntN(3) {
		from := s.between(0, s.plan.heal)
		d.full = append(d.full, window{from, from + s.between(500*time.Millisecond, 20*time.Second)})
	}
	return d
}

// fails reports that a write now finds no space. A window counts as one fault.
func (d *disk) fails() bool {
	if d.s.healed {
		return false
	}
	i := inside(d.full, d.s.now())
	if i < 0 {
		return false
	}
	if !d.seen[i] {
		d.seen[i] = true
		d.s.fault(faultDisk)
	}
	return true
}

// inside is the window that holds an instant, or -1.
func inside(all []window, at time.Duration) int {
	for i, w := range all {
		if at >= w.from && at < w.to {
			return i
		}
	}
	return -1
}

// commit stands before every COMMIT of the store: the disk may be full, another
// transaction may have been faster, and the answer may be lost on either side of
// the real one.
func (s *Sim) commit(commit func() error) error {
	if s.healed || !s.running {
		return commit()
	}
	switch {
	case s.base.fails():
		s.excused = true
		return protocol.Errorf(protocol.CodeUnavailable, "the database cannot write: no space is left")
	case s.chance(s.plan.raced):
		s.fault(faultRace)
		s.excused = true
		return protocol.Errorf(protocol.CodeUnavailable, "another transaction changed the same rows")
	case s.chance(s.plan.lostReply):
		s.fault(faultCommit)
		s.excused = true
		took := s.chance(0.5)
		if took {
			if err := commit(); err != nil {
				return err
			}
		}
		s.note("the reply of a commit is lost; it took place: %t", took)
		return protocol.Errorf(protocol.CodeOutcomeUnknown, "the connection to the database broke during a commit")
	}
	return commit()
}

// misfortunes are what happens at any moment, beside what happens to messages and
// at labelled steps: crashes, suspends, and clocks that are set.
func (s *Sim) misfortunes() {
	if s.plan.crashes {
		for range 1 + s.rng.IntN(6) {
			pick(s, s.victims()...).crashAt(s.between(0, s.plan.heal))
		}
		for range s.rng.IntN(3) {
			pick(s, s.victims()...).freezeAt(s.between(0, s.plan.heal))
		}
	}
	if s.plan.clocks {
		for range 1 + s.rng.IntN(2) {
			s.after(s.between(0, s.plan.heal), "", func() { s.setClocks(pick(s, 30*time.Second, 10*time.Minute, 90*time.Minute)) })
		}
		for _, m := range s.machines {
			s.after(s.between(0, s.plan.heal), "", func() {
				m.skew = pick(s, -6*time.Hour, -time.Minute, time.Minute, 6*time.Hour)
				s.note("the clock of %s is %s off", m.name, m.skew)
				s.fault(faultClock)
			})
		}
	}
}

// victims are the processes that can be killed or stopped.
func (s *Sim) victims() (out []*party) {
	for _, h := range s.hosts {
		out = append(out, &h.party)
	}
	out = append(out, &s.broker.party)
	for _, m := range s.machines {
		out = append(out, &m.party)
	}
	return out
}

// setClocks moves the wall clocks of servers and broker ahead while no time
// passes: what counts elapsed time must not notice. INV-20.
func (s *Sim) setClocks(by time.Duration) {
	s.note("clocks are set ahead by %s", by)
	s.fault(faultClock)
	s.jumped += by
	s.jumps = append(s.jumps, time.Now().Add(by))
	time.Sleep(by)
}

// moreTrouble is for a run that comes to its end too quietly: somebody asks for
// more, and something falls.
func (s *Sim) moreTrouble() {
	for range 3 {
		pick(s, s.victims()...).crashAt(s.between(0, 20*time.Second))
	}
	s.plan.heal += 30 * time.Second
	s.people[0].more(s.later)
}
