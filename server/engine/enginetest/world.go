package enginetest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"crypto/ed25519"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
	"bivouac/server/capability"
	"bivouac/server/engine"
	"bivouac/server/execution"
	"bivouac/server/placement"
	"bivouac/server/policy"
	"bivouac/server/scheduler"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Presenter is the thumbprint of the world's server key.
const Presenter = "server-thumbprint"

// World is a store, a broker, runners and one engine at a time. Settle steps all
// of it in the calling goroutine until nothing is left to do now.
type World struct {
	T      testing.TB
	Store  *store.Store
	Broker *Broker
	// Nomad starts supervisors; nil: there is none.
	Nomad  *Nomad
	Engine *engine.Engine
	// Ops of the engine; nil after Start.
	Ops     *Steps
	Runners []*Runner
	// Path of the database file.
	Path   string
	Tenant policy.Tenant
	Person policy.Principal

	elapsed lease.Elapsed
	key     *capability.Key
	signer  *capability.Signer
	begun   time.Time
	quotas  policy.Quotas
	limits  engine.Limits
	replica protocol.ReplicaID
	meter   engine.Meter
	bytes   engine.Bytes
	hosts   engine.Hosts
	ended   func(protocol.TurnID)
	commit  func(commit func() error) error
}

// Option changes a world before it begins.
type Option func(*World)

// WithLimits sets the engine's limits.
func WithLimits(l engine.Limits) Option { return func(w *World) { w.limits = l } }

// WithMeter has what happens counted.
func WithMeter(m engine.Meter) Option { return func(w *World) { w.meter = m } }

// WithEnded has f told each turn whose usage is settled.
func WithEnded(f func(protocol.TurnID)) Option { return func(w *World) { w.ended = f } }

// WithCommit stands before every COMMIT of the store.
func WithCommit(f func(commit func() error) error) Option { return func(w *World) { w.commit = f } }

// WithBytes gives the world the contents of artifacts, to be swept.
func WithBytes(b engine.Bytes) Option { return func(w *World) { w.bytes = b } }

// WithHosts gives the world nodes on which another scheduler runs runners.
func WithHosts(h engine.Hosts) Option { return func(w *World) { w.hosts = h } }

// WithQuotas sets the quotas of tenants, principals and agents.
func WithQuotas(q policy.Quotas) Option { return func(w *World) { w.quotas = q } }

// New makes a world with one tenant, one person and both agents.
func New(t testing.TB, options ...Option) *World {
	t.Helper()
	w := &World{T: t, begun: time.Now(), replica: "rep_01jdv3k8x0q6v9w2m4t7y5z1ab"}
	for _, o := range options {
		o(w)
	}
	w.elapsed = func() time.Duration { return time.Since(w.begun) }
	w.Path = filepath.Join(t.TempDir(), "state.db")
	st, err := store.Open(context.Background(), store.Config{Path: w.Path, Entropy: rand.Reader, Commit: w.commit})
	if err != nil {
		t.Fatal(err)
	}
	w.Store = st
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	w.certify()
	w.Broker = NewBroker(func(id string) (ed25519.PublicKey, bool) { return w.key.Public(), id == w.key.ID }, Presenter)
	w.Broker.Floors = w.floors
	w.Tenant, w.Person = w.Principal("local", "ada", true)
	w.Restart()
	for _, src := range []string{Assistant, Coder} {
		if _, err := w.Engine.ApplyAgent(context.Background(), w.Me(), engine.AgentSource{Filename: "agent.hcl", Source: []byte(src)}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *World) certify() {
	w.T.Helper()
	root, err := capability.NewKey(rand.Reader)
	if err != nil {
		w.T.Fatal(err)
	}
	if w.key, err = capability.NewKey(rand.Reader); err != nil {
		w.T.Fatal(err)
	}
	w.key.NotAfter = time.Now().Add(1000 * time.Hour)
	if w.key.Statement, err = capability.Certify(root.Private, "server", w.key.Public(), time.Now(), w.key.NotAfter); err != nil {
		w.T.Fatal(err)
	}
	w.signer = &capability.Signer{}
	if err := w.signer.Use(w.key); err != nil {
		w.T.Fatal(err)
	}
}

func (w *World) floors() (all []policy.Floor) {
	err := w.Store.View(context.Background(), store.AsLoop("feed"), func(tx *store.Tx) (err error) {
		all, _, err = tx.Floors(0, 0)
		return err
	})
	if err != nil {
		w.T.Errorf("floors: %v", err)
	}
	return all
}

// Principal makes a person of a tenant, which is made when absent.
func (w *World) Principal(tenant, name string, admin bool) (policy.Tenant, policy.Principal) {
	w.T.Helper()
	var ten policy.Tenant
	var p policy.Principal
	err := w.Store.Update(context.Background(), store.AsOperator("test"), func(tx *store.Tx) (err error) {
		if ten, err = tx.EnsureTenant(tenant); err != nil {
			return err
		}
		hash := sha256.Sum256([]byte(tenant + "/" + name))
		p = policy.Principal{ID: protocol.NewID[protocol.PrincipalKind](tx.Now, rand.Reader), Tenant: ten.ID, Name: name, Kind: "user",
			Admin: admin, TokenHash: hash[:], CreatedAt: tx.Now}
		return tx.InsertPrincipal(p)
	})
	if err != nil {
		w.T.Fatal(err)
	}
	return ten, p
}

// Me is the world's person as a caller.
func (w *World) Me() store.Caller { return Caller(w.Person) }

// Caller of a principal.
func Caller(p policy.Principal) store.Caller { return store.AsPrincipal(p.Tenant, p.ID, p.Admin) }

// replicaTTL suits a world whose time passes in steps of seconds.
const replicaTTL = 15 * time.Second

// config of an engine on this world.
func (w *World) config(ops engine.Ops) engine.Config {
	limits := w.limits
	if limits.ReplicaTTL == 0 {
		limits.ReplicaTTL = replicaTTL
	}
	c := engine.Config{
		Store: w.Store, Broker: w.Broker, Scheduler: scheduler.Embedded{}, Signer: w.signer,
		Replica: w.replica, Thumbprint: Presenter, Elapsed: w.elapsed,
		Ops: ops, Limits: limits, Quotas: w.quotas, Entropy: rand.Reader, Meter: w.meter, Bytes: w.bytes, EndedFunc: w.ended,
	}
	if w.hosts != nil {
		c.Hosts = w.hosts
	}
	if w.Nomad != nil {
		c.Allocations, c.Hosts = w.Nomad, nodes{w.Nomad}
	}
	return c
}

// nodes are all there, and take what is new.
type nodes struct{ of *Nomad }

func (n nodes) Standing(string) placement.Host {
	return placement.Host{Pool: "agents", Most: n.of.Has, Largest: n.of.Largest}
}

// Rooms are one node's.
func (n nodes) Rooms(protocol.TenantID) []placement.Resources {
	return []placement.Resources{n.of.Has, n.of.Largest}
}

func (nodes) Absent(protocol.TenantID, []string, ...string) placement.Said { return placement.Said{} }

// Restart drops the engine, as a crash does, with everything that it held in
// memory, and makes a new one on the same store. Runners must connect again.
func (w *World) Restart() {
	w.Ops = &Steps{}
	w.Engine = engine.New(w.config(w.Ops))
	for _, r := range w.Runners {
		r.lost()
	}
}

// RestartUncertified is Restart of a server for which the broker has not yet
// certified a signing key. The returned function is the certification.
func (w *World) RestartUncertified() (certify func()) {
	w.signer = &capability.Signer{}
	w.Restart()
	return func() {
		if err := w.signer.Use(w.key); err != nil {
			w.T.Fatal(err)
		}
	}
}

// Replace makes another replica the one that is stepped; the first is gone for
// good, and leaves its rows to expire.
func (w *World) Replace(replica protocol.ReplicaID) {
	w.replica = replica
	w.Restart()
}

// Beside makes another replica's engine on the same store and broker, which the
// test steps by itself.
func (w *World) Beside(replica protocol.ReplicaID) (*engine.Engine, *Steps) {
	return w.BesideAt(replica, "")
}

// BesideAt is Beside for one that says where its artifacts are.
func (w *World) BesideAt(replica protocol.ReplicaID, place string) (*engine.Engine, *Steps) {
	ops := &Steps{}
	c := w.config(ops)
	c.Replica, c.Blobs = replica, place
	return engine.New(c), ops
}

// Lead says which replica leads.
func (w *World) Lead() (l execution.Lead) {
	w.T.Helper()
	w.view(func(tx *store.Tx) (err error) {
		l, err = tx.Lead("ticks")
		return err
	})
	return l
}

// Concurrent makes an engine with real ops, for Run.
func (w *World) Concurrent() *engine.Engine {
	w.Engine, w.Ops = engine.New(w.config(engine.NewGoroutines())), nil
	return w.Engine
}

// settleSteps bounds Settle: more steps mean that something never rests.
const settleSteps = 2000

// Settle steps ticks, ops and runners until none has anything to do now.
func (w *World) Settle() {
	w.T.Helper()
	for range settleSteps {
		if !w.Step() {
			return
		}
	}
	w.T.Fatalf("the world does not come to rest; ops: %v", w.Ops.Keys())
}

// Step makes one pass over everything, and reports whether there was work.
func (w *World) Step() bool {
	w.T.Helper()
	worked, _ := w.pass(func() bool { return false })
	return worked
}

// Once steps everything once, one tick, op or runner at a time, and stops as soon
// as something is true.
func (w *World) Once(met func() bool) {
	w.T.Helper()
	w.pass(met)
}

// Until steps one tick, op or runner at a time and stops as soon as something is
// true: that is the moment at which a test lets the server crash.
func (w *World) Until(what string, met func() bool) {
	w.T.Helper()
	if met() {
		return
	}
	for range settleSteps {
		worked, stopped := w.pass(met)
		if stopped {
			return
		}
		if !worked {
			w.T.Fatalf("the world comes to rest before %s", what)
		}
	}
	w.T.Fatalf("%s never comes", what)
}

func (w *World) pass(stop func() bool) (worked, stopped bool) {
	w.T.Helper()
	for _, tick := range w.Engine.Ticks() {
		did, err := tick.Do(context.Background())
		if err != nil {
			w.T.Fatalf("tick %s: %v", tick.Name, err)
		}
		if worked = worked || did; stop() {
			return true, true
		}
	}
	for len(w.Ops.Keys()) > 0 {
		worked = w.Ops.Step(context.Background(), 0) || worked
		if stop() {
			return true, true
		}
	}
	for _, r := range w.Runners {
		if worked = r.Step() || worked; stop() {
			return true, true
		}
	}
	return worked, false
}

// Sleep lets virtual time pass, in steps of one to five seconds at which
// everything settles.
func (w *World) Sleep(d time.Duration) {
	w.T.Helper()
	coarse := min(max(d/40, time.Second), 4*time.Second)
	for d > 0 {
		step := min(d, coarse)
		time.Sleep(step)
		d -= step
		w.Settle()
	}
}

// Session opens a session of the world's person.
func (w *World) Session(agent string) session.Session {
	w.T.Helper()
	s, err := w.Engine.CreateSession(context.Background(), w.Me(), engine.NewSession{Agent: agent})
	if err != nil {
		w.T.Fatal(err)
	}
	return s
}

// Submit queues a prompt; the message id is the prompt's own.
func (w *World) Submit(s session.Session, prompt string) session.Turn {
	w.T.Helper()
	a, err := w.Engine.SubmitTurn(context.Background(), w.Me(), engine.NewTurn{Session: s.ID, MessageID: "msg-" + prompt, Prompt: prompt})
	if err != nil {
		w.T.Fatal(err)
	}
	return a.Turn
}

// Turn as it is now.
func (w *World) Turn(id protocol.TurnID) (t session.Turn) {
	w.T.Helper()
	w.view(func(tx *store.Tx) (err error) {
		t, err = tx.Turn(id)
		return err
	})
	return t
}

// Actions of a turn, in order.
func (w *World) Actions(id protocol.TurnID) (as []session.Action) {
	w.T.Helper()
	w.view(func(tx *store.Tx) (err error) {
		as, err = tx.ActionsOfTurn(id)
		return err
	})
	return as
}

// Approvals of a turn, in order.
func (w *World) Approvals(id protocol.TurnID) (as []session.Approval) {
	w.T.Helper()
	w.view(func(tx *store.Tx) (err error) {
		as, err = tx.ApprovalsOfTurn(id)
		return err
	})
	return as
}

// Events of a session, in order.
func (w *World) Events(id protocol.SessionID) (es []session.Stored) {
	w.T.Helper()
	w.view(func(tx *store.Tx) (err error) {
		es, err = tx.Events(id, 0, 0)
		return err
	})
	return es
}

// Types of a session's events, in order.
func (w *World) Types(id protocol.SessionID) []session.EventType {
	w.T.Helper()
	var out []session.EventType
	for _, e := range w.Events(id) {
		out = append(out, e.Type)
	}
	return out
}

func (w *World) view(fn func(tx *store.Tx) error) {
	w.T.Helper()
	if err := w.Store.View(context.Background(), store.AsLoop("test"), fn); err != nil {
		w.T.Fatal(err)
	}
}

// Check holds what must be true at any moment: effects happened once each, and
// every effect belongs to an action that was dispatched. INV-4, INV-5.
func (w *World) Check() error {
	var once []protocol.ActionID
	for _, effect := range w.Broker.Effects() {
		if slices.Contains(once, effect.Action) {
			return fmt.Errorf("action %s had two effects", effect.Action)
		}
		once = append(once, effect.Action)
		var a session.Action
		err := w.Store.View(context.Background(), store.AsLoop("test"), func(tx *store.Tx) (err error) {
			a, err = tx.Action(effect.Action)
			return err
		})
		if err != nil {
			return fmt.Errorf("effect of %s has no intent: %w", effect.Action, err)
		}
		if a.DispatchedAt.IsZero() {
			return fmt.Errorf("effect of action %s, which was never dispatched", a.ID)
		}
	}
	return nil
}
