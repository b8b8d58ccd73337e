package edge

import (
	"errors"
	"slices"
	"time"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
)

// Question is an action that waits for the owner of this machine, as the owner is
// shown it. For whom it is, and what the server's people decided, is the server's
// word; all else is what this machine holds.
type Question struct {
	Attempt protocol.AttemptID `json:"attempt_id"`
	// Work is the device action.
	Work      string `json:"work"`
	Session   string `json:"session_id,omitempty"`
	Turn      string `json:"turn_id,omitempty"`
	Principal string `json:"principal,omitempty"`
	Agent     string `json:"agent,omitempty"`
	// Arguments are canonical JSON.
	Arguments       string `json:"arguments"`
	ArgumentsDigest string `json:"arguments_digest"`
	// PreImageDigest of the file that a write replaces; empty: it must be new.
	PreImageDigest string    `json:"pre_image_digest,omitempty"`
	ApprovedBy     string    `json:"approved_by,omitempty"`
	ApprovalDigest string    `json:"approval_digest,omitempty"`
	Digest         string    `json:"digest"`
	AskedAt        time.Time `json:"asked_at"`
	ExpiresInMs    int64     `json:"expires_in_ms"`
	// WaitMs is how long it waits in all, and KeyTTLMs how long edge.hcl would let it:
	// where that is longer, the server's bound counts, which is as long as an approval
	// of its agent may wait.
	WaitMs   int64 `json:"wait_ms"`
	KeyTTLMs int64 `json:"key_ttl_ms,omitempty"`
	// Decision that was made and is not carried out yet; empty while it waits.
	Decision string `json:"decision,omitempty"`
}

// Questions that wait for the owner, oldest first.
func (d *Daemon) Questions() []Question {
	out := []Question{}
	for _, h := range d.keys.all() {
		if h.attempt.cut.Load() == nil {
			out = append(out, d.shown(h))
		}
	}
	for _, k := range d.turnKeys.all() {
		if q := d.shownTurn(k); k.live(d.cfg.Elapsed()) && (q.Decision == "" && q.ExpiresInMs > 0 || q.Decision == secondkey.Approved) {
			out = append(out, q)
		}
	}
	slices.SortStableFunc(out, func(a, b Question) int { return a.AskedAt.Compare(b.AskedAt) })
	return out
}

func (d *Daemon) shown(h *heldKey) Question {
	q := d.questionAbout(h.attempt.id, h.asked, h.work.GetOrigin())
	key, _ := d.rules.Load().policy.KeyOver(h.asked.Over)
	q.WaitMs, q.KeyTTLMs = h.asked.TTLMs, key.TTL.Milliseconds()
	q.Work, q.Arguments, q.ArgumentsDigest = h.work.GetAction(), h.work.GetArguments(), canonical.Digest([]byte(h.work.GetArguments()))
	q.PreImageDigest = h.work.GetPreImageDigest()
	q.ApprovedBy, q.ApprovalDigest = h.work.GetApprovedBy(), h.work.GetApprovalDigest()
	return q
}

// questionAbout is what is the same for every kind of work: where it comes from, what
// a decision binds, and how it stands.
func (d *Daemon) questionAbout(id protocol.AttemptID, asked *question, from *runnerv1.WorkOrigin) Question {
	return Question{
		Attempt: id,
		Session: from.GetSessionId(), Turn: from.GetTurnId(), Principal: from.GetPrincipal(), Agent: from.GetAgent(),
		Digest: asked.Digest, AskedAt: time.UnixMicro(asked.AskedUs), ExpiresInMs: max(0, d.keyLeft(asked).Milliseconds()),
		Decision: d.actions.entry(id).decided.GetDecision(),
	}
}

// Decision of the owner about one question. Digest is what was shown.
type Decision struct {
	Attempt protocol.AttemptID `json:"attempt_id"`
	Digest  string             `json:"digest"`
	Approve bool               `json:"approve"`
	Reason  string             `json:"reason,omitempty"`
}

// maxReason bounds what a model is told of a denial.
const maxReason = 2000

// decide takes the owner's decision, once: the same again is harmless, another one a
// conflict. It is durable when decide returns. by is the user of this machine's
// operating system who decided; no server comes this way. INV-6.
func (d *Daemon) decide(c Decision, by string) (Question, error) {
	h, k := d.keys.get(c.Attempt), d.turnKeys.get(c.Attempt)
	if h == nil && (k == nil || !k.live(d.cfg.Elapsed())) {
		return Question{}, protocol.Errorf(protocol.CodeNotFound, "nothing waits for you as %s: see `%s`", c.Attempt, d.cfg.State.Command("approvals"))
	}
	if len(c.Reason) > maxReason {
		return Question{}, protocol.Errorf(protocol.CodeInvalidArgument, "the reason has %d bytes, the limit is %d", len(c.Reason), maxReason)
	}
	made := &runnerv1.OwnerDecided{Decision: secondkey.Denied, By: by, Reason: c.Reason}
	if c.Approve {
		made.Decision = secondkey.Approved
	}
	if h == nil {
		if !secondkey.Decides(c.Digest, k.asked.Digest, secondkey.TurnDigest(d.enrolment.Runner, k.offer)) {
			return Question{}, d.notBound(c)
		}
		err := d.settleKey(k.id, k.asked, made)
		return d.shownTurn(k), err
	}
	e := d.actions.entry(c.Attempt)
	if !secondkey.Decides(c.Digest, h.asked.Digest, secondkey.Digest(c.Attempt, e.fence, d.enrolment.Runner, e.work)) {
		return Question{}, d.notBound(c)
	}
	if cut := h.attempt.cut.Load(); cut != nil {
		return Question{}, protocol.Errorf(protocol.CodeFailedPrecondition, "%s is over, and nothing ran: %s", c.Attempt, cut.Message)
	}
	if err := d.settleKey(c.Attempt, h.asked, made); err != nil {
		return Question{}, err
	}
	h.attempt.seq.CompareAndSwap(keySeq-1, keySeq) // its result may have come since
	h.wake.Ring()
	d.wakeReport.Ring()
	return d.shown(h), nil
}

func (d *Daemon) notBound(c Decision) error {
	return protocol.Errorf(protocol.CodeConflict, "%s is not what the digest %s binds: see again what waits with `%s`", c.Attempt, c.Digest, d.cfg.State.Command("approvals"))
}

// settleKey makes a decision durable, unless there is one. What came too late is
// refused: time decided.
func (d *Daemon) settleKey(id protocol.AttemptID, asked *question, made *runnerv1.OwnerDecided) error {
	d.keys.deciding.Lock()
	defer d.keys.deciding.Unlock()
	before := d.actions.entry(id).decided.GetDecision()
	switch {
	case before == made.Decision:
		return nil
	case before != "":
		return protocol.Errorf(protocol.CodeConflict, "%s was %s already: see `%s`", id, before, d.cfg.State.Command("approvals"))
	case made.Decision != secondkey.Expired && d.keyLeft(asked) <= 0:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the time of %s has passed, and it did not run: have the agent asked again", id)
	}
	made.Digest = asked.Digest
	made.WaitedMs = asked.waited(d.cfg.Elapsed(), time.Now(), thisBoot()).Milliseconds()
	switch err := d.actions.decide(id, made); {
	case errors.Is(err, errOver):
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s is over, and nothing ran: see `%s` for what still waits", id, d.cfg.State.Command("approvals"))
	case err != nil:
		return protocol.Errorf(protocol.CodeUnavailable, "the decision cannot be journalled, so it does not count: %w", err)
	}
	d.log.Info("the second key was decided", "attempt", id, "decision", made.Decision, "by", made.By, "digest", made.Digest)
	d.wakeReport.Ring()
	return nil
}
