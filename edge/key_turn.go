package edge

import (
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
)

// turnKey is a turn about which the owner is asked before this machine claims it:
// while somebody thinks, it holds no lease, capability, slot or sandbox (INV-7), and
// may go to another machine.
type turnKey struct {
	id    protocol.AttemptID
	offer *runnerv1.Offer
	asked *question
	seen  atomic.Int64 // when it was offered last, by elapsed time
}

// offeredWithin is how long ago a turn may have been offered last to be still shown:
// the server offers what waits again every few seconds.
const offeredWithin = 2 * time.Minute

// live reports that the turn still waits for this machine, as far as is known here.
func (k *turnKey) live(elapsed time.Duration) bool {
	return elapsed-time.Duration(k.seen.Load()) < offeredWithin
}

// turnRefused says why an offered turn is not claimed yet, or not at all, where the
// owner holds a second key over turns; nil when it may be claimed. The question is
// journalled before the server hears of it.
func (d *Daemon) turnRefused(o *runnerv1.Offer) (no *runnerv1.DeclineRequest, err error) {
	id := protocol.AttemptID(o.GetAttemptId())
	key, held := d.rules.Load().policy.KeyOver(secondkey.Turn)
	k := d.turnKeys.get(id)
	if k == nil && !held {
		return nil, nil
	}
	if k != nil && k.asked.Digest != secondkey.TurnDigest(d.enrolment.Runner, o) {
		d.dropTurn(id) // other work under the same name
		k = nil
	}
	if k == nil {
		if o.GetTurn() == nil || o.GetSpecDigest() == "" {
			return &runnerv1.DeclineRequest{Reason: "its owner holds a second key over turns, and the server does not show what this one is: update bivouac-server"}, nil
		}
		if n := d.turnsAsked(); n >= maxQuestions {
			return &runnerv1.DeclineRequest{Reason: "its owner is asked about enough other turns"}, nil
		}
		if k, err = d.askTurn(id, o, key); err != nil {
			return nil, err
		}
	}
	k.seen.Store(int64(d.cfg.Elapsed()))
	return d.turnAnswer(k)
}

// askTurn journals the question.
func (d *Daemon) askTurn(id protocol.AttemptID, o *runnerv1.Offer, key owner.SecondKey) (*turnKey, error) {
	raw, err := proto.Marshal(o)
	if err != nil {
		return nil, err
	}
	k := &turnKey{id: id, offer: o, asked: d.questionNow(secondkey.Turn, key.TTL)}
	k.asked.Digest = secondkey.TurnDigest(d.enrolment.Runner, o)
	if err := d.actions.askedTurn(id, raw, k.asked); err != nil {
		return nil, err
	}
	d.turnKeys.put(id, k)
	d.log.Info("a turn waits for the owner", "attempt", id, "approve", d.cfg.State.Command("approve "+id.String()))
	return k, nil
}

// turnAnswer is what the owner said of a turn, for the server too: people there see
// that it waits, and a refusal may end the turn.
func (d *Daemon) turnAnswer(k *turnKey) (no *runnerv1.DeclineRequest, err error) {
	decided := d.actions.entry(k.id).decided
	if decided == nil && d.keyLeft(k.asked) <= 0 {
		decided = &runnerv1.OwnerDecided{Decision: secondkey.Expired}
		if err := d.settleKey(k.id, k.asked, decided); err != nil {
			return nil, err
		}
	}
	no = &runnerv1.DeclineRequest{OwnerDecided: decided}
	switch decided.GetDecision() {
	case secondkey.Approved:
		if d.keyLeft(k.asked) > 0 {
			return nil, nil
		}
		no.Reason = "its owner approved it, and that was too long ago"
	case secondkey.Denied:
		no.Reason = "its owner denied it"
		if decided.GetReason() != "" {
			no.Reason += ": " + decided.GetReason()
		}
	case secondkey.Expired:
		no.Reason = "its owner did not approve it in time"
	default:
		no.Reason = "its owner holds a second key over turns and is asked; on that machine: " + d.cfg.State.Command("approve "+k.id.String())
		no.OwnerAsked = &runnerv1.OwnerAsked{Digest: k.asked.Digest, WaitMs: d.keyLeft(k.asked).Milliseconds()}
	}
	return no, nil
}

// sameTurn compares what was claimed with what the owner was shown. INV-6.
func (d *Daemon) sameTurn(id protocol.AttemptID, res *runnerv1.ClaimResponse) error {
	k := d.turnKeys.get(id)
	if k == nil {
		return nil
	}
	if same, err := secondkey.Given(k.offer, res); err != nil {
		return err
	} else if !same {
		return protocol.Errorf(protocol.CodePolicyDenied, "the turn is not the one that the owner of this machine approved, and does not run")
	}
	return nil
}

// dropTurn forgets a question about a turn.
func (d *Daemon) dropTurn(id protocol.AttemptID) {
	if d.turnKeys.get(id) == nil {
		return
	}
	d.turnKeys.remove(id)
	if err := d.actions.forget(id, nil); err != nil {
		d.problems.note("journal", err)
	}
}

// turnsAsked counts questions about turns, and forgets those that went elsewhere, or
// ended, long ago.
func (d *Daemon) turnsAsked() (n int) {
	for _, k := range d.turnKeys.all() {
		if d.cfg.Elapsed()-time.Duration(k.seen.Load()) > 10*offeredWithin {
			d.dropTurn(k.id)
			continue
		}
		n++
	}
	return n
}

// recoverTurnKeys takes up the questions of an earlier daemon.
func (d *Daemon) recoverTurnKeys() error {
	for id, e := range d.actions.offered() {
		k := &turnKey{id: id, offer: new(runnerv1.Offer), asked: e.asked}
		if err := proto.Unmarshal(e.offer, k.offer); err != nil {
			return err
		}
		k.seen.Store(int64(d.cfg.Elapsed()))
		d.turnKeys.put(id, k)
	}
	return nil
}

// shownTurn is the question as the owner sees it.
func (d *Daemon) shownTurn(k *turnKey) Question {
	t := k.offer.GetTurn()
	text, err := canonical.Marshal(map[string]any{"prompt": t.GetPrompt(), "workspace_digest": t.GetWorkspaceDigest()})
	if err != nil {
		text = nil // only for text that is no UTF-8, which protobuf refuses
	}
	q := d.questionAbout(k.id, k.asked, t.GetOrigin())
	q.Work, q.Arguments, q.ArgumentsDigest = secondkey.Turn, string(text), k.offer.GetSpecDigest()
	return q
}
