package sim

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/engine"
	"bivouac/server/store"
)

// machine is a runner: the daemon's side of the contract, its disk, and a
// supervisor for each turn that it holds.
type machine struct {
	party
	n       int
	id      protocol.RunnerID
	thumb   string
	caller  store.Caller
	links   []*link // to each server
	toModel *link   // the relay's way to the broker
	facts   *runnerv1.Facts
	freezes bool          // it holds work that has no authority
	parks   bool          // its turns leave it while a person decides
	skew    time.Duration // of its wall clock
	disk    *disk
	entries []*entry       // on the disk
	turns   []*keyQuestion // on the disk: turns that its owner is asked about
	power   int            // how often it was lost
	nonces  int
	fenced  bool // it was revoked, and knows
	// relinked at the end of the run.
	relinked bool
	wire     []*runnerv1.ReportRequest // what it said last, for one who repeats it

	// lost with the daemon:
	at      *host // the server that it is connected to, or tries
	epoch   int64
	cursor  int64
	open    map[int64]bool // deliveries: false once dealt with
	polling bool
	poll    *event
}

func (s *Sim) newMachine(n int, devices bool) *machine {
	name := "machine" + strconv.Itoa(n)
	m := &machine{party: party{s: s, name: name}, n: n, thumb: "thumb-" + name, disk: s.newDisk(), freezes: s.chance(0.5), parks: s.chance(0.8),
		at: pick(s, s.hosts...), toModel: s.newLink(name + "-broker"), id: protocol.NewID[protocol.RunnerKind](time.Now(), s.entropy)}
	for _, h := range s.hosts {
		m.links = append(m.links, s.newLink(name+"-"+h.name))
	}
	m.boot, m.die = m.begin, m.end
	m.facts = &runnerv1.Facts{Os: "linux", Arch: "amd64", Slots: 2, Boundary: "process", Limits: "cgroup", Adapters: []string{"native"}, Harnesses: []*runnerv1.Harness{{Name: "native", Version: "0.1.0", Protocol: 1}}}
	if devices {
		m.facts.Actions = []string{"files.read", "files.write"}
	}
	if k := s.plan.key; k.machine == n {
		m.facts.SecondKeys = slices.Sorted(slices.Values(k.over))
	}
	s.world.files[m.id] = map[string]string{"home/a": "first"}
	return m
}

// begin is a start of the daemon: it takes up what its disk holds.
func (m *machine) begin() {
	m.epoch, m.cursor, m.open, m.polling, m.poll = 0, 0, map[int64]bool{}, false, nil
	if m.fenced {
		return
	}
	for _, e := range slices.Clone(m.entries) {
		m.recover(e)
	}
	m.after(m.s.between(0, 50*time.Millisecond), "", m.connect)
	m.after(time.Second, "", m.watch)
	m.after(time.Second, "", m.renew)
}

// end is a kill of the daemon; supervisors go on, unless the machine itself
// lost its power.
func (m *machine) end() {
	power := m.s.chance(0.5)
	if power {
		m.s.note("%s loses its power", m.name)
		m.power++
	}
	m.entries = slices.DeleteFunc(m.entries, func(e *entry) bool {
		if power {
			if e.worker != nil {
				e.worker.kill()
			}
			return !e.power(m.s)
		}
		w := e.worker
		e.life = newLife(m.s)
		e.worker = w
		return false
	})
}

func (m *machine) entry(id protocol.AttemptID) *entry {
	i := slices.IndexFunc(m.entries, func(e *entry) bool { return e.id == id })
	if i < 0 {
		return nil
	}
	return m.entries[i]
}

func (m *machine) forget(e *entry) {
	if e.worker != nil {
		e.worker.kill()
	}
	m.entries = slices.DeleteFunc(m.entries, func(o *entry) bool { return o == e })
}

// toServer is one call of this daemon.
func toServer[T any](m *machine, name string, do func(ctx context.Context, e *engine.Engine) (T, error), done func(T, error)) {
	serve(m.at, call{over: m.links[m.at.n], from: &m.party, name: m.name + " " + name, timeout: shortCall}, do, done)
}

// connect takes the connection row and learns what the server knows of each
// lease.
func (m *machine) connect() {
	req := &runnerv1.ConnectRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(),
		BootNonce: m.name + "-" + strconv.Itoa(m.life), Facts: m.facts, Held: m.held(m.entries)}
	all, sent := slices.Clone(m.entries), m.s.now()
	toServer(m, "connect", func(ctx context.Context, e *engine.Engine) (*runnerv1.ConnectResponse, error) {
		resp, err := e.Connect(ctx, m.caller, "http/3", req)
		m.verdicts(resp.GetLeases())
		return resp, err
	}, func(resp *runnerv1.ConnectResponse, err error) {
		switch {
		case protocol.CodeOf(err) == protocol.CodeUnauthenticated:
			m.fence(err)
			return
		case err != nil:
			m.at = pick(m.s, m.s.hosts...)
			m.after(m.backoff(), "", m.connect)
			return
		}
		m.s.note("%s is connected, epoch %d", m.name, resp.Epoch)
		m.epoch, m.cursor, m.open = resp.Epoch, resp.MailboxCursor, map[int64]bool{}
		m.judge(all, sent, resp.Leases)
		m.mail()
		m.report()
	})
}

func (m *machine) backoff() time.Duration {
	if m.s.healed {
		return m.s.between(50*time.Millisecond, 500*time.Millisecond)
	}
	return m.s.between(50*time.Millisecond, 4*time.Second)
}

// gone ends a session, of which another took the epoch or whose link is down.
func (m *machine) gone(epoch int64, err error) {
	if m.epoch != epoch || epoch == 0 {
		return
	}
	m.s.note("%s has lost its link: %v", m.name, err)
	m.epoch = 0
	if at := m.at; at.up && m.s.chance(0.5) { // its server notices, too
		m.s.after(m.s.between(0, 5*time.Second), "", func() {
			if at.up && !at.frozen() {
				at.call(m.name+" disconnect", func(error) {}, func(ctx context.Context, e *engine.Engine) error { return e.Disconnect(ctx, m.caller, epoch) })
			}
		})
	}
	if m.s.chance(0.3) {
		m.at = pick(m.s, m.s.hosts...)
	}
	m.after(m.backoff(), "", m.connect)
}

// fence ends everything because the server said so, and the daemon with it.
func (m *machine) fence(why error) {
	m.s.note("%s ends: %v", m.name, why)
	m.fenced, m.epoch, m.turns = true, 0, nil
	for _, e := range slices.Clone(m.entries) {
		m.forget(e)
	}
}

// verdicts notes of which leases a server spoke.
func (m *machine) verdicts(all []*runnerv1.LeaseVerdict) {
	for _, v := range all {
		if v.Alive && v.Terms != nil {
			m.s.leased(protocol.AttemptID(v.AttemptId))
		}
	}
}

// held is what the server is told of on every connect and renewal.
func (m *machine) held(all []*entry) (out []*runnerv1.HeldLease) {
	for _, e := range all {
		if e.work != nil && !e.lost {
			out = append(out, &runnerv1.HeldLease{AttemptId: e.id.String(), Fence: int64(e.fence), JournalSeq: int64(len(e.record))})
		}
	}
	return out
}

// judge takes verdicts on leases that a request named.
func (m *machine) judge(all []*entry, sent time.Duration, verdicts []*runnerv1.LeaseVerdict) {
	for _, e := range all {
		if e.work == nil || e.lost || m.entry(e.id) != e {
			continue
		}
		i := slices.IndexFunc(verdicts, func(v *runnerv1.LeaseVerdict) bool { return v.AttemptId == e.id.String() })
		switch {
		case i < 0 || !verdicts[i].Alive:
			m.cutOff(e, protocol.Errorf(protocol.CodeStaleFence, "the server took the lease of attempt %s back", e.id))
		case verdicts[i].Terms != nil:
			e.grant(sent, verdicts[i].Terms)
			if e.worker != nil {
				e.worker.granted(sent, verdicts[i].Terms)
			}
		}
	}
}

// renewEvery is a third of the agents' authority ttl.
const renewEvery = 5 * time.Second

func (m *machine) renew() {
	m.after(renewEvery, "", m.renew)
	var leased []*entry
	for _, e := range m.entries {
		if e.work != nil && !e.ended() && e.cut == nil {
			leased = append(leased, e)
		}
	}
	if m.epoch == 0 || len(leased) == 0 {
		return
	}
	epoch, sent, req := m.epoch, m.s.now(), &runnerv1.RenewRequest{Epoch: m.epoch, Leases: m.held(leased)}
	toServer(m, "renew", func(ctx context.Context, e *engine.Engine) (*runnerv1.RenewResponse, error) {
		resp, err := e.Renew(ctx, m.caller, req)
		m.verdicts(resp.GetLeases())
		return resp, err
	}, func(resp *runnerv1.RenewResponse, err error) {
		if err != nil {
			m.gone(epoch, err)
			return
		}
		m.judge(leased, sent, resp.Leases)
	})
}

// watch reads every clock once a second.
func (m *machine) watch() {
	m.after(time.Second, "", m.watch)
	if m.fenced {
		return
	}
	for _, e := range slices.Clone(m.entries) {
		switch {
		case e.work == nil || e.ended():
		case e.cut != nil:
			if e.turn() && m.epoch != 0 {
				m.abandon(e)
			}
		case !e.judged: // found by recovery: the server has not said what it knows
		case e.over(m):
			m.cutOff(e, protocol.Errorf(protocol.CodeLeaseExpired, "the server did not renew the lease of attempt %s in time", e.id))
		case e.turn() && (e.worker == nil || !e.worker.up) && e.permit() == nil:
			m.supervise(e)
		}
	}
}

// cutOff takes an attempt's authority, once.
func (m *machine) cutOff(e *entry, why *protocol.Error) {
	switch why.Code {
	case protocol.CodeStaleFence, protocol.CodeLeaseExpired:
		e.lost = true
	}
	if e.ended() || e.cut != nil {
		return
	}
	e.cut = why
	m.s.note("%s cuts %s off: %v", m.name, e.id, why)
	if e.worker != nil {
		e.worker.kill()
	}
}

// abandon ends a turn that was cut: a lost one needs no word of ours.
func (m *machine) abandon(e *entry) {
	if e.lost {
		m.forget(e)
		return
	}
	e.result(m, &runnerv1.Result{Status: "cancelled", Code: string(protocol.CodeOf(e.cut)), Message: e.cut.Error()})
	m.report()
}

func transient(err error) bool {
	switch protocol.CodeOf(err) {
	case protocol.CodeUnavailable, protocol.CodeDeadlineExceeded, protocol.CodeCancelled,
		protocol.CodeRateLimited, protocol.CodeQueueFull, protocol.CodeInternal, protocol.CodeOutcomeUnknown:
		return true
	}
	return false
}

func coded(err error) *protocol.Error {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e
	}
	return protocol.Errorf(protocol.CodeInternal, "%w", err)
}
