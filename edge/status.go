package edge

import (
	"time"

	"bivouac/edge/link"
	"bivouac/edge/protocol"
)

// Status is what the daemon says of itself to its owner.
type Status struct {
	Runner      protocol.RunnerID `json:"runner_id"`
	Name        string            `json:"name"`
	Server      string            `json:"server"`
	Broker      string            `json:"broker"`
	Version     string            `json:"version"`
	Connected   bool              `json:"connected"`
	Transport   string            `json:"transport,omitempty"` // "http/3" or "http/2"
	QUICProblem string            `json:"quic_problem,omitempty"`
	// ProbeIn is how soon QUIC is tried again, while the link runs over TCP.
	ProbeIn int64 `json:"probe_in_ms,omitempty"`
	// Streams counts what the link carried since the daemon started, by method.
	Streams map[string]link.Traffic `json:"streams"`
	Epoch   int64                   `json:"epoch"`
	Paused  bool                    `json:"paused"`
	// Stopping counts sandboxed turns that are being ended.
	Stopping       int      `json:"stopping,omitempty"`
	Slots          int32    `json:"slots"`
	Boundary       string   `json:"boundary,omitempty"`
	Limits         string   `json:"limits,omitempty"`
	SandboxProblem string   `json:"sandbox_problem,omitempty"`
	Actions        []string `json:"actions"`
	Toolchains     []string `json:"toolchains"`
	// Caches of packages that sandboxed code may read.
	Caches []string `json:"caches"`
	// RefusesEgress: the owner lets no sandbox read packages.
	RefusesEgress bool `json:"refuses_egress,omitempty"`
	// SecondKeys are over what the owner is asked, Questions how many actions wait.
	SecondKeys []string `json:"second_keys"`
	Questions  int      `json:"questions"`
	// Freezer is what keeps a turn while the server cannot be reached; empty: such
	// turns are ended, and begin again elsewhere.
	Freezer string `json:"freezer,omitempty"`
	// Disk is how the disk limit of a turn is kept.
	Disk     string          `json:"disk,omitempty"`
	Attempts []AttemptStatus `json:"attempts"`
	// PolicyProblem is what is wrong with edge.hcl as it is; the last one without a
	// problem is in force.
	PolicyProblem  string    `json:"policy_problem,omitempty"`
	JournalBytes   int64     `json:"journal_bytes"`
	CertificateEnd time.Time `json:"certificate_not_after"`
	LastError      string    `json:"last_error,omitempty"`
	LastErrorAt    time.Time `json:"last_error_at,omitzero"`
	// Ended is why a daemon of the last day ended by itself, and what to do about it.
	Ended string `json:"ended,omitempty"`
}

// AttemptStatus is one attempt on this machine.
type AttemptStatus struct {
	ID    protocol.AttemptID `json:"attempt_id"`
	Kind  string             `json:"kind"`
	State string             `json:"state"` // running, waiting, frozen, stopping, reporting
	// Allocation is the job in which another scheduler starts its supervisor.
	Allocation  string `json:"allocation,omitempty"`
	AuthorityMs int64  `json:"authority_left_ms"`
	Reason      string `json:"reason,omitempty"`
}

// Status of the daemon now.
func (d *Daemon) Status() Status {
	f := d.factsNow()
	out := Status{
		Runner: d.enrolment.Runner, Name: d.enrolment.Name, Server: d.enrolment.Server, Broker: d.broker(), Version: d.cfg.Version,
		Transport: d.link.Transport(), QUICProblem: d.link.QUICProblem(), Paused: f.GetPaused(), Stopping: d.turns.stopping(),
		Slots: f.GetSlots(), Boundary: f.GetBoundary(), Limits: f.GetLimits(), SandboxProblem: f.GetSandboxProblem(),
		Actions: f.GetActions(), Toolchains: f.GetToolchains(), Caches: f.GetCaches(), Freezer: f.GetFreezer(), Disk: f.GetDisk(), Attempts: []AttemptStatus{},
	}
	out.Streams, out.PolicyProblem = d.link.Streams(), d.problems.text("policy")
	if wait, ok := d.link.NextProbe(); ok {
		out.ProbeIn = max(1, wait.Milliseconds())
	}
	if d.ready.Load() {
		out.JournalBytes = d.actions.journal.Bytes()
	}
	if c := d.line.get(); c != nil {
		out.Connected, out.Epoch = true, c.epoch
	}
	if c, err := d.cfg.State.Certificate(); err == nil {
		out.CertificateEnd = c.Leaf.NotAfter
	}
	if end, ok := d.cfg.State.Ended(); ok {
		out.Ended = end.String()
	}
	out.SecondKeys = f.GetSecondKeys()
	out.RefusesEgress = f.GetRefusesEgress()
	for _, a := range d.table.all() {
		s := statusOf(a)
		if h := d.keys.get(a.id); h != nil && s.State == "running" {
			s.State, s.Reason = "waiting", "for your second key: "+d.cfg.State.Command("approvals")
			out.Questions++
		}
		if t := d.turns.get(a.id); t != nil {
			s.Allocation = t.job
		}
		out.Attempts = append(out.Attempts, s)
	}
	out.Attempts = append(out.Attempts, d.awaitedStatus()...)
	for _, k := range d.turnKeys.all() {
		if k.live(d.cfg.Elapsed()) && d.ready.Load() && d.actions.entry(k.id).decided == nil {
			out.Questions++
		}
	}
	if p := d.problems.newest(); p.err != nil {
		out.LastError, out.LastErrorAt = p.err.Error(), p.at
	}
	return out
}

func statusOf(a *attempt) AttemptStatus {
	s := AttemptStatus{ID: a.id, Kind: a.kind, State: "running", AuthorityMs: max(0, a.lease.Authority().Milliseconds())}
	cut := a.cut.Load()
	switch {
	case a.ended.Load():
		s.State = "reporting"
	case cut != nil:
		s.State, s.Reason = "stopping", cut.Message
	case a.judged.Load() && a.lease.Authority() <= 0:
		s.State = "frozen"
		s.Reason = "the server has not renewed its lease; it goes on when that comes, or ends in " + a.lease.Retention().Round(time.Second).String()
	}
	return s
}

// awaitedStatus are turns that are not claimed before another scheduler has started their
// supervisor.
func (d *Daemon) awaitedStatus() (out []AttemptStatus) {
	for _, w := range d.awaiting.all() {
		job := w.offer.GetAllocation()
		if !w.over.Load() && d.table.get(w.id) == nil {
			out = append(out, AttemptStatus{ID: w.id, Kind: protocol.KindTurn, State: "waiting", Allocation: job,
				Reason: "for Nomad to start its supervisor"})
		}
	}
	return out
}
