package runnerapi

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/server/store"
)

// heartbeat is how often an attached runner hears from us when there is no
// mail; each one looks at the durable state again.
const heartbeat = 5 * time.Second

// mailBatch is how many deliveries one read takes.
const mailBatch = 64

// disconnectTimeout bounds the word to the engine that a stream has ended.
const disconnectTimeout = 2 * time.Second

// Attach sends the mailbox after a cursor, then what comes. Nothing is deleted
// here: only Acknowledge does. A later epoch ends the stream as stale_fence.
func (s runners) Attach(ctx context.Context, r *runnerv1.AttachRequest, stream *connect.ServerStream[runnerv1.AttachResponse]) error {
	peer, c, err := runnerOf(ctx)
	if err != nil {
		return err
	}
	wake, stop := s.Store.Subscribe(store.MailOf(c.Runner()))
	defer stop()
	defer s.disconnect(ctx, c, r.GetEpoch())
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	a := attached{Config: s.Config, peer: peer, caller: c, epoch: r.GetEpoch(), cursor: r.GetCursor(), stream: stream}
	for due := true; ; {
		if err := a.deliver(ctx, due); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.Stopping:
			return stopping()
		case <-link.Draining(ctx):
			return stopping()
		case <-wake:
			due = false
		case <-beat.C:
			due = true
		}
	}
}

// attached is one open stream and how far it is.
type attached struct {
	Config
	peer          identity.Peer
	caller        store.Caller
	epoch, cursor int64
	stream        *connect.ServerStream[runnerv1.AttachResponse]
}

// deliver sends what is new and, when one is due, a heartbeat. The last words to
// a revoked runner are in its mail, so its standing is judged after them.
func (a *attached) deliver(ctx context.Context, due bool) error {
	judge := due
	for {
		mail, err := a.Engine.Mail(ctx, a.caller, a.epoch, a.cursor, mailBatch)
		if err != nil {
			return err
		}
		for _, m := range mail {
			if err := a.stream.Send(m); err != nil {
				return err
			}
			a.cursor, judge = m.GetSeq(), true
		}
		if len(mail) < mailBatch {
			break
		}
	}
	if judge {
		if err := welcome(ctx, a.Store, a.peer); err != nil {
			return err
		}
	}
	if !due {
		return nil
	}
	return a.stream.Send(&runnerv1.AttachResponse{Kind: &runnerv1.AttachResponse_Heartbeat{
		Heartbeat: &runnerv1.Heartbeat{ServerTimeUs: time.Now().UnixMicro()},
	}})
}

// disconnect tells the engine, also when the request's context has ended. An
// epoch that was taken over meanwhile is not touched by it.
func (s runners) disconnect(ctx context.Context, c store.Caller, epoch int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), disconnectTimeout)
	defer cancel()
	if err := s.Engine.Disconnect(ctx, c, epoch); err != nil {
		s.Log.WarnContext(ctx, "a runner's end of connection was not recorded", "runner", c.Runner(), "error", err)
	}
}
