package sim

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/fault"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/canonical"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/secondkey"
	"bivouac/server/engine"
)

// mailEvery is how often the mailbox is asked without a wake-up; a server's
// stream says at once that something came.
const mailEvery = 2 * time.Second

// mail asks for deliveries after the cursor.
func (m *machine) mail() {
	m.poll.cancel()
	m.poll = m.after(mailEvery, "", m.mail)
	if m.epoch == 0 || m.polling {
		return
	}
	m.polling = true
	epoch, cursor := m.epoch, m.cursor
	toServer(m, "mail", func(ctx context.Context, e *engine.Engine) ([]*runnerv1.AttachResponse, error) {
		return e.Mail(ctx, m.caller, epoch, cursor, 16)
	}, func(items []*runnerv1.AttachResponse, err error) {
		m.polling = false
		if err != nil {
			m.gone(epoch, err)
			return
		}
		if m.epoch != epoch {
			return
		}
		for _, item := range items {
			m.cursor = max(m.cursor, item.Seq)
			m.deliver(item)
		}
	})
}

// mailed wakes the stream.
func (m *machine) mailed() {
	if m.up && m.epoch != 0 {
		m.after(m.s.between(0, 2*time.Millisecond), "", m.mail)
	}
}

// deliver deals with one delivery; one that is dealt with already, or now, is
// left alone.
func (m *machine) deliver(item *runnerv1.AttachResponse) {
	if _, known := m.open[item.Seq]; known {
		return
	}
	m.open[item.Seq] = true
	switch k := item.Kind.(type) {
	case *runnerv1.AttachResponse_Offer:
		m.offer(item.Seq, k.Offer)
		return
	case *runnerv1.AttachResponse_Fenced:
		m.fence(protocol.Errorf(protocol.CodePermissionDenied, "%s", k.Fenced.Reason))
		return
	case *runnerv1.AttachResponse_Stop:
		if e := m.entry(protocol.AttemptID(k.Stop.AttemptId)); e != nil {
			m.cutOff(e, protocol.Errorf(protocol.CodeCancelled, "stopped: %s", k.Stop.Reason))
		}
	case *runnerv1.AttachResponse_ToolAnswer:
		if e := m.entry(protocol.AttemptID(k.ToolAnswer.AttemptId)); e != nil && e.worker != nil {
			e.worker.answered(k.ToolAnswer)
		}
	}
	m.done(item.Seq)
}

// done acknowledges up to the last delivery before the first that is open.
func (m *machine) done(seq int64) {
	m.open[seq] = false
	upTo := int64(0)
	for n := range m.open {
		upTo = max(upTo, n)
	}
	for n, open := range m.open {
		if open {
			upTo = min(upTo, n-1)
		}
	}
	if m.epoch == 0 || upTo == 0 {
		return
	}
	epoch := m.epoch
	toServer(m, "acknowledge", func(ctx context.Context, e *engine.Engine) (struct{}, error) {
		return struct{}{}, e.Acknowledge(ctx, m.caller, &runnerv1.AcknowledgeRequest{Epoch: epoch, Seq: upTo})
	}, func(_ struct{}, err error) {
		if protocol.CodeOf(err) == protocol.CodeStaleFence {
			m.gone(epoch, err)
		}
	})
}

// offer claims under a nonce that is on the disk, or nearly; a turn under a second
// key only after its owner's yes.
func (m *machine) offer(seq int64, o *runnerv1.Offer) {
	id := protocol.AttemptID(o.AttemptId)
	e := m.entry(id)
	if e != nil && e.work != nil {
		m.done(seq)
		return // claimed before
	}
	var yes *runnerv1.OwnerDecided
	if o.SubjectKind == protocol.KindTurn && m.keyed(secondkey.Turn) {
		if m.turnQuestion(id) == nil && m.disk.fails() {
			m.gone(m.epoch, protocol.Errorf(protocol.CodeUnavailable, "the question about %s cannot be journalled: no space is left", id))
			return
		}
		if no := m.turnRefused(o); no != nil {
			m.decline(seq, id, no)
			return
		}
		yes = m.turnQuestion(id).decided
	}
	if e == nil {
		m.nonces++
		e = &entry{id: id, nonce: m.name + "-nonce" + strconv.Itoa(m.nonces), life: newLife(m.s)}
		m.entries = append(m.entries, e)
	}
	epoch, sent, nonce := m.epoch, m.s.now(), e.nonce
	toServer(m, "claim "+id.String(), func(ctx context.Context, eng *engine.Engine) (*runnerv1.ClaimResponse, error) {
		resp, err := eng.Claim(ctx, m.caller, &runnerv1.ClaimRequest{AttemptId: id.String(), Epoch: epoch, BootNonce: nonce, OwnerDecided: yes})
		if err == nil {
			m.s.claimed(id, m, nonce, resp.Terms)
		}
		return resp, err
	}, func(resp *runnerv1.ClaimResponse, err error) {
		switch {
		case m.entry(id) != e:
		case err != nil && (transient(err) || protocol.CodeOf(err) == protocol.CodeStaleFence):
			m.gone(epoch, err) // it comes again after the next connect
		case err != nil:
			m.forget(e)
			m.done(seq)
		case m.disk.fails():
			m.gone(epoch, protocol.Errorf(protocol.CodeUnavailable, "the claim of %s cannot be journalled: no space is left", id))
		default:
			m.take(e, sent, resp)
			m.done(seq)
		}
	})
}

// take journals a claim, and begins the work.
func (m *machine) take(e *entry, sent time.Duration, resp *runnerv1.ClaimResponse) {
	if e.work != nil {
		return
	}
	work := &runnerv1.Work{}
	if err := proto.Unmarshal(resp.Work, work); err != nil || canonical.Digest(resp.Work) != resp.SpecDigest {
		m.s.violate("the work of %s does not have its digest, or cannot be read: %v", e.id, err)
		return
	}
	e.work, e.spec, e.fence = work, resp.SpecDigest, protocol.Fence(resp.Terms.Fence)
	e.grant(sent, resp.Terms)
	m.givenAsShown(e.id, resp)
	if d := work.GetDevice(); d != nil {
		e.append(m, &runnerv1.Record{Kind: &runnerv1.Record_Started{Started: &runnerv1.Started{}}}, true)
		if m.keyed(d.Action) {
			m.holdBack(e, d)
		} else {
			e.intend(m)
		}
	}
	if !m.reach(fault.EdgeClaimJournalled) {
		return
	}
	if e.turn() {
		m.startWorker(e)
		return
	}
	if e.waits() {
		m.report()
		m.awaitKey(e)
		return
	}
	if m.reach(fault.EdgeEffectIntent) {
		m.startDevice(e)
	}
}

// givenAsShown: a claim hands over the turn that its owner was shown. INV-6.
func (m *machine) givenAsShown(id protocol.AttemptID, resp *runnerv1.ClaimResponse) {
	q := m.turnQuestion(id)
	if q == nil {
		return
	}
	if same, err := secondkey.Given(q.offer, resp); err != nil || !same {
		m.s.violate("INV-6: the claim of %s hands over another turn than its owner was shown: %v", id, err)
	}
	m.dropTurn(id)
}

// decline sends an offer elsewhere, with the reason.
func (m *machine) decline(seq int64, id protocol.AttemptID, no *runnerv1.DeclineRequest) {
	epoch := m.epoch
	no.AttemptId, no.Epoch = id.String(), epoch
	toServer(m, "decline "+id.String(), func(ctx context.Context, e *engine.Engine) (struct{}, error) {
		return struct{}{}, e.Decline(ctx, m.caller, no)
	}, func(_ struct{}, err error) {
		if err != nil && (transient(err) || protocol.CodeOf(err) == protocol.CodeStaleFence) {
			m.gone(epoch, err)
			return
		}
		m.done(seq)
	})
}
