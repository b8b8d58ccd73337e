package sim

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
)

// keyQuestion waits for the owner of a machine, on its disk.
type keyQuestion struct {
	id      protocol.AttemptID
	digest  string
	offer   *runnerv1.Offer // of a turn, which is not claimed
	ttl     time.Duration
	asked   time.Duration // by elapsed time, which counts until the power fails
	wall    time.Time     // by the machine's clock, which counts from then on
	power   int
	decided *runnerv1.OwnerDecided
}

// newQuestion begins to wait, and lets the owner know.
func (m *machine) newQuestion(id protocol.AttemptID, digest string, ttl time.Duration, shown subject) *keyQuestion {
	q := &keyQuestion{id: id, digest: digest, ttl: ttl, asked: m.s.now(), wall: m.clock(), power: m.power}
	m.s.shown[digest] = shown
	m.s.owned["asked"]++
	m.s.note("%s asks its owner about %s for %s", m.name, id, ttl)
	m.s.consider(m, q)
	return q
}

func (m *machine) clock() time.Time { return time.Now().Add(m.skew) }

// left of its time, as edge counts it.
func (q *keyQuestion) left(m *machine) time.Duration {
	if q.power == m.power {
		return q.ttl - (m.s.now() - q.asked)
	}
	return min(q.ttl, q.ttl-m.clock().Sub(q.wall))
}

func (q *keyQuestion) decision() string { return q.decided.GetDecision() }

// keySeq is the record of the decision: it started, it was asked, it was decided.
const keySeq = 3

// waits reports a device action whose effect cannot have begun: its owner is asked.
func (e *entry) waits() bool {
	return e.question != nil && !e.ended() && !slices.ContainsFunc(e.record, func(r *runnerv1.Record) bool { return r.GetEffectIntent() != nil })
}

// holdBack journals the question about a claimed action, in place of its intent.
func (m *machine) holdBack(e *entry, d *runnerv1.DeviceWork) {
	ttl := m.s.plan.key.ttl
	if most := time.Duration(d.MaxOwnerWaitMs) * time.Millisecond; most > 0 {
		ttl = min(ttl, most)
	}
	e.question = m.newQuestion(e.id, secondkey.Digest(e.id, e.fence, m.id, d), ttl, subjectOf(m, e))
	e.append(m, &runnerv1.Record{Kind: &runnerv1.Record_OwnerAsked{OwnerAsked: &runnerv1.OwnerAsked{
		Digest: e.question.digest, WaitMs: ttl.Milliseconds()}}}, true)
}

// intend journals that an effect may have begun. INV-4.
func (e *entry) intend(m *machine) {
	d := e.work.GetDevice()
	e.append(m, &runnerv1.Record{Kind: &runnerv1.Record_EffectIntent{EffectIntent: &runnerv1.EffectIntent{
		ActionId: d.ActionId, ArgumentsDigest: d.ArgumentsDigest}}}, true)
}

// awaitKey looks at an action that waits for the owner. It goes on with a yes that
// the server has, too; otherwise it is over, and nothing ran. INV-6.
func (m *machine) awaitKey(e *entry) {
	e.look.cancel()
	if m.entry(e.id) != e || !e.waits() {
		return
	}
	wait := min(time.Second, max(time.Millisecond, e.question.left(m)))
	switch no := m.keyRefused(e); {
	case no != nil:
		m.settle(e, no)
		return
	case e.question.decision() != secondkey.Approved || e.acked < keySeq || e.lease.Authority() <= 0:
	case m.disk.fails():
		wait = time.Second
	default:
		e.intend(m)
		m.s.note("%s goes on with %s: its owner approved it", m.name, e.id)
		if m.reach(fault.EdgeEffectIntent) {
			m.startDevice(e)
		}
		return
	}
	e.look = m.after(wait, "", func() { m.awaitKey(e) })
}

// keyRefused is how a waiting action ends without being done; nil while it may be.
func (m *machine) keyRefused(e *entry) *runnerv1.Result {
	q := e.question
	switch over := q.left(m) <= 0; {
	case e.cut != nil:
		return failed(protocol.CodeOf(e.cut), e.cut.Error())
	case q.decided == nil && over:
		if m.disk.fails() {
			return nil
		}
		m.decided(q, &runnerv1.OwnerDecided{Decision: secondkey.Expired})
		return notApproved("not in time")
	case q.decision() == secondkey.Approved && over:
		return notApproved("the server did not hear of it in time")
	case q.decided != nil && q.decision() != secondkey.Approved:
		return notApproved(q.decision())
	}
	return nil
}

func notApproved(why string) *runnerv1.Result {
	return &runnerv1.Result{Status: protocol.ResultDenied, Code: string(protocol.CodePermissionDenied), Message: "the owner did not approve it: " + why}
}

// decided journals a decision: with the records of an action, or for the claim of a
// turn.
func (m *machine) decided(q *keyQuestion, d *runnerv1.OwnerDecided) {
	d.Digest, d.WaitedMs = q.digest, (m.s.now() - q.asked).Milliseconds()
	q.decided = d
	m.s.owned[d.Decision]++
	if e := m.entry(q.id); q.offer == nil && e != nil {
		e.append(m, &runnerv1.Record{Kind: &runnerv1.Record_OwnerDecided{OwnerDecided: d}}, true)
		m.report()
	}
}

// held is the digest of what the machine holds, of which it asked.
func (m *machine) heldDigest(q *keyQuestion) string {
	if q.offer != nil {
		return secondkey.TurnDigest(m.id, q.offer)
	}
	e := m.entry(q.id)
	return secondkey.Digest(e.id, e.fence, m.id, e.work.GetDevice())
}

// open finds what waits for the owner under a name.
func (m *machine) openQuestion(id protocol.AttemptID) *keyQuestion {
	if e := m.entry(id); e != nil && e.waits() {
		return e.question
	}
	if i := slices.IndexFunc(m.turns, func(q *keyQuestion) bool { return q.id == id }); i >= 0 {
		return m.turns[i]
	}
	return nil
}

// decide takes the owner's decision, as edge does: once, in time, about what was
// shown, and on the disk. INV-6.
func (m *machine) decide(id protocol.AttemptID, digest string, made string) error {
	q := m.openQuestion(id)
	switch {
	case q == nil:
		return protocol.Errorf(protocol.CodeNotFound, "nothing waits as %s", id)
	case !secondkey.Decides(digest, q.digest, m.heldDigest(q)):
		return protocol.Errorf(protocol.CodeConflict, "%s is not what the digest binds", id)
	case q.offer == nil && m.entry(id).cut != nil:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s is over", id)
	case q.decision() == made:
		return nil
	case q.decided != nil:
		return protocol.Errorf(protocol.CodeConflict, "%s was %s already", id, q.decision())
	case q.left(m) <= 0:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the time of %s has passed", id)
	case m.disk.fails():
		return protocol.Errorf(protocol.CodeUnavailable, "the decision cannot be journalled: no space is left")
	}
	m.decided(q, &runnerv1.OwnerDecided{Decision: made, By: "owner"})
	if e := m.entry(id); e != nil && q.offer == nil {
		m.awaitKey(e)
	}
	return nil
}

// turnRefused is the answer to an offered turn that is not claimed yet, or not at
// all: nil when its owner let it in. INV-7.
func (m *machine) turnRefused(o *runnerv1.Offer) *runnerv1.DeclineRequest {
	id := protocol.AttemptID(o.AttemptId)
	q := m.turnQuestion(id)
	if q != nil && q.digest != secondkey.TurnDigest(m.id, o) {
		m.s.violate("INV-6: attempt %s is offered as another turn than before", id)
	}
	if q == nil {
		q = m.newQuestion(id, secondkey.TurnDigest(m.id, o), m.s.plan.key.ttl, subject{attempt: id, machine: m.name, tool: secondkey.Turn,
			arguments: o.GetTurn().GetPrompt(), work: o.SpecDigest, workspace: o.GetTurn().GetWorkspaceDigest()})
		q.offer = proto.CloneOf(o)
		m.turns = append(m.turns, q)
	}
	if q.decided == nil && q.left(m) <= 0 && !m.disk.fails() {
		m.decided(q, &runnerv1.OwnerDecided{Decision: secondkey.Expired})
	}
	switch {
	case q.decided == nil:
		return &runnerv1.DeclineRequest{Reason: "its owner is asked", OwnerAsked: &runnerv1.OwnerAsked{Digest: q.digest, WaitMs: q.left(m).Milliseconds()}}
	case q.decision() != secondkey.Approved || q.left(m) <= 0:
		return &runnerv1.DeclineRequest{Reason: "its owner did not let it in", OwnerDecided: q.decided}
	}
	return nil
}

func (m *machine) turnQuestion(id protocol.AttemptID) *keyQuestion {
	if q := m.openQuestion(id); q != nil && q.offer != nil {
		return q
	}
	return nil
}

// dropTurn forgets a question about a turn.
func (m *machine) dropTurn(id protocol.AttemptID) {
	m.turns = slices.DeleteFunc(m.turns, func(q *keyQuestion) bool { return q.id == id })
}
