package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing/synctest"
	"time"

	"bivouac/edge/fault"
	"bivouac/server/store"
)

// Sim is one seed under way.
type Sim struct {
	seed    uint64
	dir     string
	rng     *rand.Rand
	entropy io.Reader // of identifiers
	plan    plan
	kind    string
	begun   time.Time
	healed  bool
	over    bool

	queue    queue
	events   uint64
	steps    int
	named    int // steps in which something happened, not only a look
	faults   map[string]int
	putOff   int           // how often the end of the faults was
	jumped   time.Duration // by how much clocks were set ahead
	jumps    []time.Time
	later    chat // for a run that is too quiet
	still    int  // steps since time passed
	crashes  int
	scripts  int
	contents int
	trace    []string
	names    map[string]string // short names of identifiers
	counts   map[string]int

	store    *store.Store
	base     *disk // of the database
	wakes    map[store.Topic]<-chan struct{}
	touched  bool
	running  bool // the set-up is over
	acting   *host
	excused  bool // the store was made to fail under who acts
	trust    *trust
	floors   floorFeed
	world    *world
	hosts    []*host
	broker   *broker
	machines []*machine
	people   []*person
	stranger *stranger

	observed
}

// Result of one seed.
type Result struct {
	Seed      uint64
	Kind      string // of the plan
	Violation string // empty: none
	Steps     int
	Events    int
	Faults    map[string]int
	Crashes   int
	Effects   int
	Turns     map[string]int // by how they ended
	Unknown   int            // actions of unknown outcome
	Owner     map[string]int // what came of questions to the owner of a machine
	Virtual   time.Duration
	Trace     []string
	// Labels that were reached, and at which a party was killed.
	Labels, Killed map[fault.Label]int
}

// FaultCount is how many faults the seed met, of all kinds.
func (r *Result) FaultCount() int { return countFaults(r.Faults) }

// Run plays one seed in an empty directory, inside a synctest bubble.
func Run(seed uint64, dir string) *Result {
	key := sha256.Sum256(fmt.Appendf(nil, "seed %d", seed))
	s := &Sim{seed: seed, dir: dir, rng: rand.New(rand.NewPCG(seed, 1)), entropy: rand.NewChaCha8(key), begun: time.Now(),
		faults: map[string]int{}, names: map[string]string{}, counts: map[string]int{}, observed: newObserved()}
	if err := s.setUp(); err != nil {
		s.violate("the set-up fails: %v", err)
	}
	for !s.over {
		s.step()
	}
	s.tearDown()
	return s.result()
}

// setUp makes tenant, person, agents and machines while nothing fails.
func (s *Sim) setUp() (err error) {
	s.kind, s.plan = s.makePlan()
	s.later = chat{agent: "assistant", prompts: []prompt{{0, s.script("assistant", s.plan)}, {0, s.script("assistant", s.plan)}}}
	s.base = s.newDisk()
	if s.store, err = store.Open(context.Background(), store.Config{Path: filepath.Join(s.dir, "state.db"), Entropy: s.entropy, Commit: s.commit}); err != nil {
		return err
	}
	s.wakes = map[store.Topic]<-chan struct{}{}
	for _, t := range topics {
		s.wakes[t], _ = s.store.Subscribe(t)
	}
	if s.trust, err = newTrust(); err != nil {
		return err
	}
	s.world, s.broker = newWorld(s), newBroker(s)
	for n := range hostCount {
		s.hosts = append(s.hosts, newHost(s, n))
	}
	for _, h := range s.hosts {
		h.start()
	}
	s.broker.start()
	if err := s.inhabit(); err != nil {
		return err
	}
	s.begin()
	return nil
}

// begin lets everybody begin, and faults with them.
func (s *Sim) begin() {
	s.running = true
	for _, p := range s.people {
		p.begin()
		p.takeBack()
	}
	s.stranger.begin()
	s.machines[len(s.machines)-1].lie()
	s.misfortunes()
	s.after(s.plan.heal, "faults end", s.heal)
	s.after(time.Second, "", s.checkRest)
	s.note("plan %s: %d machines with devices, until %s", s.kind, s.plan.devices, s.plan.heal)
	if k := s.plan.key; k.machine >= 0 {
		s.note("the owner of %s holds a second key over %s, for %s", s.machines[k.machine].name, strings.Join(k.over, ", "), k.ttl)
	}
}

// mostAtOnce bounds the steps of one instant: more never come to rest.
const mostAtOnce = 1000

// step is one event, and everything that must be true after it.
func (s *Sim) step() {
	e := s.next()
	if e == nil {
		s.violate("nothing is left to happen")
		return
	}
	s.still++
	s.acting, s.excused = s.hosts[0], false
	if wait := e.at - s.now(); wait > 0 {
		time.Sleep(wait)
		s.still = 0
	}
	if s.still > mostAtOnce {
		s.violate("liveness: %d steps, and no time passes", s.still)
		return
	}
	s.steps++
	if e.name != "" {
		s.named++
		s.note("· %s", e.name)
	}
	e.do()
	s.settle()
}

// settle wakes whoever a commit concerns, and looks at what was committed.
func (s *Sim) settle() {
	synctest.Wait() // the store's writer wakes its subscribers after it has answered
	touched := map[store.Topic]bool{}
	for _, t := range topics {
		select {
		case <-s.wakes[t]:
			touched[t] = true
		default:
		}
	}
	if touched[store.TopicFloors] {
		s.floors.stale = true
		s.sawFloors()
	}
	for _, h := range s.hosts {
		h.wake()
	}
	if touched[store.TopicMail] {
		for _, m := range s.machines {
			if !s.hintLost() {
				m.mailed()
			}
		}
	}
	if len(touched) > 0 || s.touched {
		s.touched = false
		s.observe()
	}
	s.late = ""
}

// hintLost reports a wake-up that does not come.
func (s *Sim) hintLost() bool {
	if s.healed || !s.chance(s.plan.hintLost) {
		return false
	}
	s.fault(faultHint)
	return true
}

// violate ends the run with what is broken. The first violation counts.
func (s *Sim) violate(format string, args ...any) {
	s.note("VIOLATION: "+format, args...)
	if s.violation == "" {
		s.violation = s.trace[len(s.trace)-1]
	}
	s.over = true
}

func (s *Sim) tearDown() {
	s.running = false
	for _, h := range s.hosts {
		if h.up {
			h.ops.kill()
		}
	}
	if s.broker != nil && s.broker.up {
		s.broker.end()
	}
	if s.store != nil {
		if err := s.store.Close(); err != nil {
			s.violate("the store does not close: %v", err)
		}
	}
}

func (s *Sim) result() *Result {
	r := &Result{Seed: s.seed, Kind: s.kind, Violation: s.violation, Steps: s.steps, Events: s.named, Faults: s.faults, Crashes: s.crashes, Turns: map[string]int{},
		Owner: s.owned, Virtual: s.now(), Trace: s.trace, Labels: s.labels, Killed: s.killed}
	if s.world != nil {
		r.Effects = len(s.world.effects)
	}
	for _, t := range s.shadow.turns {
		word := string(t.State)
		if t.Reason != "" {
			word += "{" + t.Reason + "}"
		}
		r.Turns[word]++
	}
	for _, a := range s.shadow.actions {
		if a.State == "UNKNOWN" {
			r.Unknown++
		}
	}
	return r
}
