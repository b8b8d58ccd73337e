package engine

import (
	"context"

	"google.golang.org/protobuf/proto"

	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/execution"
	"bivouac/server/store"
)

// mail puts a durable command into a runner's mailbox.
func (e *Engine) mail(tx *store.Tx, r protocol.RunnerID, a protocol.AttemptID, m *runnerv1.AttachResponse) error {
	b, err := deterministic.Marshal(m)
	if err != nil {
		return err
	}
	_, err = tx.PutMail(execution.MailboxItem{Runner: r, Attempt: a, Body: b})
	return err
}

// Mail returns deliveries after a cursor, oldest first. An epoch that was taken
// over is stale_fence: the stream ends. An offer that is none any more comes empty:
// its place in the order, and nothing to do or to ask anybody about.
func (e *Engine) Mail(ctx context.Context, c store.Caller, epoch, after int64, limit int) ([]*runnerv1.AttachResponse, error) {
	if err := e.links.current(c.Runner(), epoch); err != nil {
		return nil, err
	}
	if err := e.attach(ctx, c.Runner(), epoch); err != nil {
		return nil, err
	}
	var out []*runnerv1.AttachResponse
	err := e.cfg.Store.View(ctx, c, func(tx *store.Tx) error {
		items, err := tx.Mail(c.Runner(), after, limit)
		if err != nil {
			return err
		}
		out = make([]*runnerv1.AttachResponse, len(items))
		for i, item := range items {
			if out[i], err = delivery(tx, item); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

// delivery is one command as its runner gets it now.
func delivery(tx *store.Tx, item execution.MailboxItem) (*runnerv1.AttachResponse, error) {
	m := &runnerv1.AttachResponse{}
	if err := proto.Unmarshal(item.Body, m); err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "delivery %d of runner %s cannot be read: %w", item.Seq, item.Runner, err)
	}
	m.Seq = item.Seq
	if m.GetOffer() == nil {
		return m, nil
	}
	a, err := tx.Attempt(item.Attempt)
	switch {
	case protocol.CodeOf(err) == protocol.CodeNotFound:
		// It went to another machine, and is none of this one's business.
	case err != nil:
		return nil, err
	case a.Runner == item.Runner && a.Allocation == m.GetOffer().GetAllocation() && !a.State.Terminal() && a.State != execution.AttemptQueued:
		return m, nil // claimed counts too: the answer to the claim may be lost
	}
	m.Kind = nil
	return m, nil
}

// Acknowledge forgets deliveries up to a sequence.
func (e *Engine) Acknowledge(ctx context.Context, c store.Caller, req *runnerv1.AcknowledgeRequest) error {
	if err := e.links.current(c.Runner(), req.Epoch); err != nil {
		return err
	}
	return e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error { return tx.AckMail(c.Runner(), req.Seq) })
}
