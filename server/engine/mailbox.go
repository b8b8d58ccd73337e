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
// over is stale_fence: the stream ends.
func (e *Engine) Mail(ctx context.Context, c store.Caller, epoch, after int64, limit int) ([]*runnerv1.AttachResponse, error) {
	if err := e.links.current(c.Runner(), epoch); err != nil {
		return nil, err
	}
	if err := e.attach(ctx, c.Runner(), epoch); err != nil {
		return nil, err
	}
	var items []execution.MailboxItem
	err := e.cfg.Store.View(ctx, c, func(tx *store.Tx) (err error) {
		items, err = tx.Mail(c.Runner(), after, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]*runnerv1.AttachResponse, len(items))
	for i, item := range items {
		m := &runnerv1.AttachResponse{}
		if err := proto.Unmarshal(item.Body, m); err != nil {
			return nil, protocol.Errorf(protocol.CodeDataLoss, "delivery %d of runner %s cannot be read: %w", item.Seq, c.Runner(), err)
		}
		m.Seq = item.Seq
		out[i] = m
	}
	return out, nil
}

// Acknowledge forgets deliveries up to a sequence.
func (e *Engine) Acknowledge(ctx context.Context, c store.Caller, req *runnerv1.AcknowledgeRequest) error {
	if err := e.links.current(c.Runner(), req.Epoch); err != nil {
		return err
	}
	return e.cfg.Store.Update(ctx, c, func(tx *store.Tx) error { return tx.AckMail(c.Runner(), req.Seq) })
}
