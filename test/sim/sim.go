package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing/synctest"
	"time"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/server/engine"
	"bivouac/server/execution"
	"bivouac/server/policy"
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
	still    int // steps since time passed
	crashes  int
	scripts  int
	contents int
	trace    []string
	names    map[string]string // short names of identifiers
	counts   map[string]int

	store    *store.Store
	wakes    map[store.Topic]<-chan struct{}
	touched  bool
	trust    *trust
	floors   floorFeed
	world    *world
	host     *host
	broker   *broker
	machines []*machine
	person   *person
	toBroker *link
	feedLink *link

	observed
}

// Result of one seed.
type Result struct {
	Seed      uint64
	Kind      string // of the plan
	Violation string // empty: none
	Steps     int
	Crashes   int
	Effects   int
	Turns     map[string]int // by how they ended
	Unknown   int            // actions of unknown outcome
	Virtual   time.Duration
	Trace     []string
	// Labels that were reached, and at which a party was killed.
	Labels, Killed map[fault.Label]int
}

// Run plays one seed in an empty directory, inside a synctest bubble.
func Run(seed uint64, dir string) *Result {
	key := sha256.Sum256(fmt.Appendf(nil, "seed %d", seed))
	s := &Sim{seed: seed, dir: dir, rng: rand.New(rand.NewPCG(seed, 1)), entropy: rand.NewChaCha8(key), begun: time.Now(),
		names: map[string]string{}, counts: map[string]int{}, observed: newObserved()}
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
	if s.store, err = store.Open(context.Background(), store.Config{Path: filepath.Join(s.dir, "state.db"), Entropy: s.entropy}); err != nil {
		return err
	}
	s.wakes = map[store.Topic]<-chan struct{}{}
	for _, t := range topics {
		s.wakes[t], _ = s.store.Subscribe(t)
	}
	if s.trust, err = newTrust(); err != nil {
		return err
	}
	s.world, s.broker, s.host = newWorld(s), newBroker(s), newHost(s)
	s.toBroker, s.feedLink = s.newLink("server-broker"), s.newLink("broker-feed")
	s.host.start()
	s.broker.start()
	if err := s.people(); err != nil {
		return err
	}
	for i := range s.plan.machines {
		if err := s.join(i); err != nil {
			return err
		}
	}
	s.person.begin()
	s.misfortunes()
	s.after(s.plan.heal, "faults end", s.heal)
	s.after(time.Second, "", s.checkRest)
	s.note("plan %s: %d machines, %d with devices, until %s", s.kind, s.plan.machines, s.plan.devices, s.plan.heal)
	return nil
}

func (s *Sim) newLink(name string) *link {
	return &link{s: s, name: name, cuts: s.cuts(s.kind, s.plan.heal), fault: s.plan.network}
}

// people makes the tenant, its person and the agents.
func (s *Sim) people() error {
	ctx := context.Background()
	s.person = &person{party: party{s: s, name: "person", up: true}, toServer: s.newLink("person-server"),
		decided: map[protocol.ApprovalID]bool{}, resolved: map[protocol.ActionID]bool{}}
	err := s.store.Update(ctx, store.AsOperator("simulation"), func(tx *store.Tx) error {
		ten, err := tx.EnsureTenant("local")
		if err != nil {
			return err
		}
		p := policy.Principal{ID: protocol.NewID[protocol.PrincipalKind](tx.Now, s.entropy), Tenant: ten.ID, Name: "ada", Kind: "user",
			Admin: true, TokenHash: []byte("ada"), CreatedAt: tx.Now}
		s.person.id, s.person.me = p.ID, store.AsPrincipal(p.Tenant, p.ID, true)
		return tx.InsertPrincipal(p)
	})
	for _, src := range s.plan.agents() {
		if err == nil {
			_, err = s.host.engine.ApplyAgent(ctx, s.person.me, engine.AgentSource{Filename: "agent.hcl", Source: []byte(src)})
		}
	}
	return err
}

// join enrols one machine and starts it.
func (s *Sim) join(i int) error {
	ctx, tenant := context.Background(), s.person.me.Tenant()
	m := s.newMachine(i, i < s.plan.devices)
	m.caller = store.AsRunner(tenant, m.id)
	m.toHost, m.toModel = s.newLink(m.name+"-server"), s.newLink(m.name+"-broker")
	code := []byte("code of " + m.name)
	err := s.store.Update(ctx, s.person.me, func(tx *store.Tx) error {
		return tx.InsertJoinCode(execution.JoinCode{Hash: code, Tenant: tenant, Principal: s.person.id, Name: m.name,
			CreatedAt: tx.Now, ExpiresAt: tx.Now.Add(time.Minute)})
	})
	if err == nil {
		_, err = s.host.engine.EnrollRunner(ctx, engine.Enrolment{CodeHash: code, Runner: m.id, PublicKey: []byte(m.name), Thumbprint: m.thumb})
	}
	s.machines = append(s.machines, m)
	m.start()
	return err
}

// misfortunes are crashes at any step, beside those at labelled ones, and
// suspends.
func (s *Sim) misfortunes() {
	if s.kind != crashes && s.kind != everything {
		return
	}
	victims := []*party{&s.host.party, &s.broker.party}
	for _, m := range s.machines {
		victims = append(victims, &m.party)
	}
	for range s.rng.IntN(6) {
		pick(s, victims...).crashAt(s.between(0, s.plan.heal))
	}
	for range s.rng.IntN(3) {
		pick(s, victims...).freezeAt(s.between(0, s.plan.heal))
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
	s.floors.stale = s.floors.stale || touched[store.TopicFloors]
	s.host.wake(touched)
	if touched[store.TopicMail] {
		for _, m := range s.machines {
			m.mailed()
		}
	}
	if len(touched) > 0 || s.touched {
		s.touched = false
		s.observe()
	}
	s.late = ""
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
	if s.host != nil && s.host.up {
		s.host.ops.kill()
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
	r := &Result{Seed: s.seed, Kind: s.kind, Violation: s.violation, Steps: s.steps, Crashes: s.crashes, Turns: map[string]int{},
		Virtual: s.now(), Trace: s.trace, Labels: s.labels, Killed: s.killed}
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
