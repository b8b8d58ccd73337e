package sim

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	"bivouac/server/engine"
	"bivouac/server/execution"
	"bivouac/server/session"
)

// subject is what the owner of a machine reads before they decide, word by word.
type subject struct {
	attempt               protocol.AttemptID
	fence                 protocol.Fence
	machine, action, tool string
	arguments             string
	preImage, approval    string
	work, workspace       string // of a turn
}

// subjectOf is what a machine is about to do for an attempt.
func subjectOf(m *machine, e *entry) subject {
	if d := e.work.GetDevice(); d != nil {
		return subject{attempt: e.id, fence: e.fence, machine: m.name, action: d.ActionId, tool: d.Action,
			arguments: d.Arguments, preImage: d.PreImageDigest, approval: d.ApprovalDigest}
	}
	shown, err := secondkey.ShownOf(e.work)
	if err != nil {
		m.s.violate("the spec of %s cannot be read: %v", e.id, err)
	}
	return subject{attempt: e.id, machine: m.name, tool: secondkey.Turn, arguments: shown.GetPrompt(),
		work: e.spec, workspace: shown.GetWorkspaceDigest()}
}

// word is a decision that a machine took from its owner, and what they had read.
type word struct {
	approve bool
	about   subject
}

// turned holds what begins on a machine against its owner's words: with a second
// key over it, they approved exactly this, on the machine. INV-6.
func (s *Sim) turned(m *machine, e *entry, kind string) {
	if !m.keyed(kind) {
		return
	}
	switch w, known := s.words[e.id]; {
	case !known || !w.approve:
		s.violate("INV-6: %s begins %s of %s without its owner's approval", m.name, kind, e.id)
	case w.about != subjectOf(m, e):
		s.violate("INV-6: %s begins %s of %s, and its owner approved something else: %s of %s", m.name, kind, e.id, w.about.tool, w.about.attempt)
	default:
		s.owned["begun"]++
	}
}

// checkOwner holds what the record says of an owner against what they said. INV-6.
func (s *Sim) checkOwner(e session.Stored) {
	rule := "INV-6"
	if s.late != "" {
		rule = "INV-3"
	}
	w, known := s.words[e.Attempt]
	switch asked := s.shown[e.Data["digest"]]; {
	case asked.attempt != e.Attempt:
		s.violate("%s: the record has a question or a decision about %s that its machine never asked", rule, e.Attempt)
	case e.Type == session.OwnerDecided && e.Data["decision"] == secondkey.Expired && known:
		s.violate("%s: the record says that time decided about %s, and its owner did", rule, e.Attempt)
	case e.Type == session.OwnerDecided && e.Data["decision"] != secondkey.Expired && (!known || w.approve != (e.Data["decision"] == secondkey.Approved)):
		s.violate("%s: the record says that the owner %s %s, and they did not", rule, e.Data["decision"], e.Attempt)
	}
}

// consider makes up the mind of a machine's owner about a question: yes, no, too
// late, twice, both ways, or with the digest of another one. Meanwhile the turn may
// be cancelled, a grant taken back, and who asked or listens may fall.
func (s *Sim) consider(m *machine, q *keyQuestion) {
	later := s.between(500*time.Millisecond, 12*time.Second)
	if s.chance(0.15) {
		later = q.ttl + s.between(0, 5*time.Second)
	}
	made, other := secondkey.Approved, secondkey.Denied
	if s.chance(0.25) {
		made, other = other, made
	}
	if wrong := s.otherDigest(q); wrong != "" && s.chance(0.4) {
		s.answer(m, q.id, wrong, secondkey.Approved, later/2)
	}
	s.answer(m, q.id, q.digest, made, later)
	if s.chance(0.2) {
		s.answer(m, q.id, q.digest, made, later+s.between(0, 5*time.Second))
	}
	if s.chance(0.2) {
		s.answer(m, q.id, q.digest, other, later+s.between(0, 5*time.Second))
	}
	s.lastDigest = q.digest
	if s.chance(0.5) && !s.healed {
		s.after(s.between(0, later), "", func() { s.meanwhile(m, q.id) })
	}
}

// otherDigest is what this owner was asked about before, if anything.
func (s *Sim) otherDigest(q *keyQuestion) string {
	if s.lastDigest == q.digest {
		return ""
	}
	return s.lastDigest
}

// answer is one command of an owner on their machine, given again while the daemon
// is down or its disk is full.
func (s *Sim) answer(m *machine, id protocol.AttemptID, digest, made string, in time.Duration) {
	s.after(in, "owner of "+m.name+": "+made+" "+id.String(), func() {
		m.awake(func() {
			err := error(protocol.Errorf(protocol.CodeUnavailable, "the daemon is down"))
			if m.up {
				err = m.decide(id, digest, made)
			}
			switch {
			case m.fenced:
			case err != nil && transient(err):
				s.answer(m, id, digest, made, s.between(time.Second, 4*time.Second))
			case err != nil:
				s.note("%s refuses its owner: %v", m.name, err)
				s.owned["refused: "+string(protocol.CodeOf(err))]++
			default:
				s.heard(id, word{made == secondkey.Approved, s.shown[digest]})
			}
		})
	})
}

// heard notes an owner's word that their machine took: the first one counts. INV-6.
func (s *Sim) heard(id protocol.AttemptID, w word) {
	if was, known := s.words[id]; known && was.approve != w.approve {
		s.violate("INV-6: the owner's question about %s was decided both ways", id)
	}
	s.words[id] = w
}

// meanwhile is what happens elsewhere while an owner thinks.
func (s *Sim) meanwhile(m *machine, id protocol.AttemptID) {
	a, known := s.shadow.attempts[id]
	if !known || s.healed || m.openQuestion(id) == nil {
		return
	}
	p := s.people[m.n/2]
	switch n := s.rng.IntN(5); {
	case n == 0:
		s.owned["cancelled while open"]++
		if t := s.turnBy(a); t != "" {
			p.cancel(t)
		}
	case n == 1 && s.plan.grants:
		s.owned["grant taken back while open"]++
		p.revokeGrant(pick(s, "assistant", "coder"))
	case n == 2 && s.plan.crashes:
		s.owned["machine killed while open"]++
		m.crash("a question to its owner")
	case n == 3 && s.plan.crashes:
		s.owned["server killed while open"]++
		m.at.crash("a question to the owner of " + m.name)
	case n == 4 && m.epoch != 0:
		s.owned["moved while open"]++
		m.gone(m.epoch, protocol.Errorf(protocol.CodeUnavailable, "its server sends it elsewhere"))
		m.at = pick(s, s.hosts...)
	}
}

// turnBy is the turn that an attempt works for.
func (s *Sim) turnBy(a execution.Attempt) protocol.TurnID {
	if a.SubjectKind == execution.SubjectTurn {
		return protocol.TurnID(a.SubjectID)
	}
	return s.shadow.actions[protocol.ActionID(a.SubjectID)].Turn
}

// forgedWord is an owner's approval that nobody gave: under a fence that was not,
// or beside the order of the records, or about other arguments. It counts nowhere.
// INV-3, INV-6.
func (m *machine) forgedWord(a execution.Attempt) *runnerv1.ReportRequest {
	s, fence, seq := m.s, a.Fence, a.AcceptedSeq
	s.owned["forged"]++
	switch s.rng.IntN(3) {
	case 0:
		fence, seq = fence+pick(s, protocol.Fence(-1), 1, 1<<32), seq+1
	case 1:
		if seq--; seq < 1 { // both were said before, and otherwise
			seq = 9
		}
	default:
		seq += 5 // nothing came between
	}
	work := new(runnerv1.Work)
	if err := proto.Unmarshal(a.Work, work); err != nil {
		s.violate("the work of %s cannot be read: %v", a.ID, err)
	}
	if d := work.GetDevice(); d != nil && s.chance(0.5) {
		d.Arguments = `{"content":"forged","path":"home/a"}`
	}
	digest := secondkey.Digest(a.ID, a.Fence, m.id, work.GetDevice())
	return &runnerv1.ReportRequest{AttemptId: a.ID.String(), Fence: int64(fence), Epoch: m.epoch, Records: []*runnerv1.Record{
		{Seq: seq, AtUs: time.Now().UnixMicro(), Kind: &runnerv1.Record_OwnerAsked{OwnerAsked: &runnerv1.OwnerAsked{Digest: digest, WaitMs: 1 << 40}}},
		{Seq: seq + 1, AtUs: time.Now().UnixMicro(), Kind: &runnerv1.Record_OwnerDecided{OwnerDecided: &runnerv1.OwnerDecided{Decision: secondkey.Approved, By: "owner", Digest: digest}}},
	}}
}

// claimsYes says to a server what no owner said: of this machine's work, or of
// another's.
func (m *machine) claimsYes(own, foreign []execution.Attempt) (string, func(ctx context.Context, e *engine.Engine) error) {
	s := m.s
	if len(foreign) > 0 && (len(own) == 0 || s.chance(0.5)) {
		a := pick(s, foreign...)
		req := m.forgedWord(a)
		req.Fence = int64(a.Fence)
		return "an approval of another owner", func(ctx context.Context, e *engine.Engine) error {
			_, err := e.Report(ctx, m.caller, req)
			if protocol.CodeOf(err) != protocol.CodeStaleFence {
				s.foreign("an owner's approval by a machine that it is not for", err)
			}
			return nil
		}
	}
	if len(own) == 0 {
		return "", nil
	}
	return "an owner's approval", m.retell(m.forgedWord(pick(s, own...)))
}
