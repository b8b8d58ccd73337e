package engine

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/execution"
	"bivouac/server/placement"
)

// allocated is what the leader knows of the jobs that another scheduler runs for attempts.
// It is memory only: a new leader begins with a list.
type allocated struct {
	most int

	mu     sync.Mutex // guards below
	seen   []Allocated
	begun  time.Time            // of the last list that was answered; zero: none was
	tried  time.Time            // of the last list
	hints  uint64               // before the last list
	again  bool                 // something was changed since it began
	asks   map[string]time.Time // jobs that were asked for lately
	inHand map[string]bool      // jobs that are being ended since the last list
	// Why none is asked for: lists fail, requests do, or too many wait.
	failing, refusing, waiting brake
	// spoiled are runners on whose nodes allocations end before they begin.
	spoiled map[protocol.RunnerID]spoil
}

// spoil holds a node back on which an allocation ended before it began.
type spoil struct {
	brake
	last time.Time
}

// brake holds something for a while, which grows with each time.
type brake struct {
	said  placement.Said
	until time.Time
	tries int
}

// on holds until about twice as long as the last time. The part that differs comes from a
// count and not from chance: two servers count apart soon enough.
func (b *brake) on(now time.Time, said placement.Said, first, most time.Duration) {
	d := min(most, first<<min(b.tries, 16))
	spread := time.Duration(b.tries*5%8) * d / 16 // less than half of it
	b.said, b.until, b.tries = said, now.Add(d-d/4+spread), b.tries+1
}

func (b *brake) off() { *b = brake{} }

func (b *brake) holds(now time.Time) bool { return b.tries > 0 && now.Before(b.until) }

const (
	// knownFor is how long a list counts.
	knownFor = 2 * time.Minute
	// forgetAfter is how long the last bad end on a node is remembered.
	forgetAfter = time.Hour
	// fewWaiting may always wait for room at the other scheduler; more are a quarter of
	// what may be there at all.
	fewWaiting = 5

	minBrake, maxBrake               = time.Second, time.Minute
	minWaitingBrake, maxWaitingBrake = 5 * time.Second, 2 * time.Minute
)

func newAllocated(most int) *allocated {
	return &allocated{most: most, asks: map[string]time.Time{}, inHand: map[string]bool{}, spoiled: map[protocol.RunnerID]spoil{}}
}

// due reports that a list is due.
func (a *allocated) due(hints uint64, every time.Duration, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch since := now.Sub(a.tried); {
	case a.tried.IsZero():
		return true
	case a.failing.holds(now):
		return false
	case a.again || hints != a.hints || a.failing.tries > 0:
		return since >= listPause
	default:
		return since >= every
	}
}

// lists: one begins. What is changed from now on may not be in it.
func (a *allocated) lists(begun time.Time, hints uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tried, a.hints, a.again = begun, hints, false
}

// listed takes in the list that was begun then.
func (a *allocated) listed(begun time.Time, seen []Allocated, failure error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if failure != nil {
		a.failing.on(begun, placement.Said{Text: failure.Error(), Remedy: "bivouac doctor"}, minBrake, maxBrake)
		return
	}
	a.failing.off()
	a.begun, a.seen, a.inHand = begun, seen, map[string]bool{}
	wait, why := 0, placement.Said{}
	for _, s := range seen {
		delete(a.asks, s.Job)
		if s.Waits && !s.Stopped {
			wait++
			if s.Said.Text != "" {
				why = s.Said
			}
		}
	}
	for job, at := range a.asks {
		if !begun.Before(at.Add(askGrace)) {
			delete(a.asks, job)
		}
	}
	switch {
	case wait == 0:
		a.waiting.off()
	case wait >= max(fewWaiting, a.most/4):
		said := placement.Said{Text: "too many allocations wait for room at Nomad for more to be asked for", Remedy: cmp.Or(why.Remedy, "nomad job status")}
		if why.Text != "" {
			said.Text += "; of one it says: " + why.Text
		}
		a.waiting.on(begun, said, minWaitingBrake, maxWaitingBrake)
	}
}

// last is the last list, and when it was begun; zero where none counts.
func (a *allocated) last() ([]Allocated, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen, a.begun
}

// held is why no allocation is asked for now.
func (a *allocated) held(now time.Time) placement.Said {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.failing.tries > 0:
		return a.failing.said
	case a.begun.IsZero():
		return placement.Said{Text: "Nomad has not been asked yet which allocations there are", Remedy: "bivouac doctor"}
	case now.Sub(a.begun) > knownFor:
		return placement.Said{Text: "Nomad has not said for long which allocations there are", Remedy: "bivouac doctor"}
	case a.refusing.holds(now):
		return a.refusing.said
	case a.waiting.holds(now):
		return a.waiting.said
	}
	return placement.Said{}
}

// hold asks for nothing for a while.
func (a *allocated) hold(now time.Time, said placement.Said) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.refusing.holds(now) { // several that fail together are one
		a.refusing.on(now, said, minBrake, maxBrake)
	}
}

// taken: the other scheduler took one.
func (a *allocated) taken() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refusing.off()
}

// relist has the next list come soon.
func (a *allocated) relist() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.again = true
}

func (a *allocated) asked(job string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asks[job] = at
}

// unasked: the job was refused for certain.
func (a *allocated) unasked(job string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asks, job)
}

// handle reports that nobody ends the job yet, once a list.
func (a *allocated) handle(job string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.inHand[job]
	a.inHand[job] = true
	return !was
}

func (a *allocated) unhandle(job string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.inHand, job)
}

// besides are what may run beside the jobs of attempts that have not ended: how many that
// are being ended or of which nothing is known yet, and the names of those whose end was
// asked for and that Nomad has not seen end. A node out of reach keeps them for long.
func (a *allocated) besides(own []execution.Attempt) (n int, ending []string) {
	counted := map[string]bool{}
	for _, o := range own {
		counted[o.Allocation] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.seen {
		if !s.Ended && !counted[s.Job] {
			counted[s.Job] = true
			n++
			if s.Stopped {
				ending = append(ending, s.Job)
			}
		}
	}
	for job := range a.asks {
		if !counted[job] {
			n++
		}
	}
	slices.Sort(ending)
	return n, ending
}

// says is the last word on a job, as the end of a sentence.
func (a *allocated) says(job string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.seen {
		if job != "" && s.Job == job && s.Said.Text != "" {
			return "; of its allocation Nomad said: " + s.Said.Text
		}
	}
	return ""
}

// spoils: an allocation on the node of a runner ended before it began. However many turns
// wait, they try such a node one after the other, and ever more seldom.
func (a *allocated) spoils(r protocol.RunnerID, now time.Time, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.spoiled[r]
	b.last = now
	if !b.holds(now) {
		b.on(now, placement.Said{Text: why, Remedy: "on that machine: bivouac-edge doctor"}, minBrake, maxBrake)
	}
	a.spoiled[r] = b
}

// begins: an allocation there began at a time. One that has run since before the last that
// did not says nothing about the node now.
func (a *allocated) begins(r protocol.RunnerID, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b, ok := a.spoiled[r]; ok && at.After(b.last) {
		delete(a.spoiled, r)
	}
}

// forget the nodes that nothing ended on for long: their runners may be gone.
func (a *allocated) forget(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.spoiled, func(_ protocol.RunnerID, b spoil) bool { return now.Sub(b.last) > forgetAfter })
}

// full says for which runners there is none now: one of their jobs waits for room, or
// ended before it began.
func (a *allocated) full(own []execution.Attempt, now time.Time) map[protocol.RunnerID]placement.Said {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[protocol.RunnerID]placement.Said{}
	for r, b := range a.spoiled {
		if b.holds(now) {
			out[r] = b.said
		}
	}
	for _, s := range a.seen {
		for _, o := range own {
			if s.Waits && o.Allocation == s.Job {
				out[o.Runner] = s.Said
			}
		}
	}
	return out
}
