package api

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/engine"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Bounds of event lists.
const (
	defaultEvents = 200
	maxEvents     = 1000
	watchBatch    = 200
)

// watchPoll is the slow poll behind the wake-ups of a watched stream; it is also
// the longest that a disabled principal's stream lives on.
const watchPoll = time.Second

type events struct{ Config }

func (s events) ListEvents(ctx context.Context, r *apiv1.ListEventsRequest) (*apiv1.ListEventsResponse, error) {
	limit := int(r.GetLimit())
	if limit <= 0 {
		limit = defaultEvents
	}
	limit = min(limit, maxEvents)
	read, err := eventSource(r, limit)
	if err != nil {
		return nil, err
	}
	var list []session.Stored
	err = s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) (err error) {
		list, err = read(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := &apiv1.ListEventsResponse{}
	for _, e := range list {
		one, err := eventOut(e)
		if err != nil {
			return nil, err
		}
		out.Events = append(out.Events, one)
	}
	return out, nil
}

// eventSource reads a turn's events or a session's. Either must exist for the
// caller: an empty list of something absent would be a lie.
func eventSource(r *apiv1.ListEventsRequest, limit int) (func(*store.Tx) ([]session.Stored, error), error) {
	if r.GetTurnId() != "" {
		turn, err := protocol.ParseID[protocol.TurnKind](r.GetTurnId())
		return func(tx *store.Tx) ([]session.Stored, error) {
			if _, err := tx.Turn(turn); err != nil {
				return nil, err
			}
			return tx.EventsOfTurn(turn, r.GetAfterSeq(), limit)
		}, err
	}
	ses, err := protocol.ParseID[protocol.SessionKind](r.GetSessionId())
	return func(tx *store.Tx) ([]session.Stored, error) {
		if _, err := tx.Session(ses); err != nil {
			return nil, err
		}
		return tx.Events(ses, r.GetAfterSeq(), limit)
	}, err
}

// VerifyEvents proves a session's record from the rows themselves. INV-8.
func (s events) VerifyEvents(ctx context.Context, r *apiv1.VerifyEventsRequest) (*apiv1.VerifyEventsResponse, error) {
	id, err := protocol.ParseID[protocol.SessionKind](r.GetSessionId())
	if err != nil {
		return nil, err
	}
	out := &apiv1.VerifyEventsResponse{}
	err = s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		if err := tx.VerifyEvents(id); err != nil {
			return err
		}
		ses, err := tx.Session(id)
		out.Events, out.LastHash = ses.LastSeq, ses.LastHash
		return err
	})
	return out, err
}

// WatchEvents sends every durable event after a sequence, in order and without
// a gap, then live ones with the text between them. It ends cleanly when the
// session has ended and everything was sent; when the server stops it ends as
// unavailable, and the client comes back with the last sequence it saw.
func (s events) WatchEvents(ctx context.Context, r *apiv1.WatchEventsRequest, stream *connect.ServerStream[apiv1.WatchEventsResponse]) error {
	id, err := protocol.ParseID[protocol.SessionKind](r.GetSessionId())
	if err != nil {
		return err
	}
	caller := callerOf(ctx)
	wake, stopWake := s.Store.Subscribe(store.EventsOf(id))
	defer stopWake()
	text, stopText, err := s.Engine.WatchLive(ctx, caller, id)
	if err != nil {
		return err
	}
	defer stopText()
	poll := time.NewTicker(watchPoll)
	defer poll.Stop()
	w := watch{Config: s.Config, caller: caller, session: id, after: r.GetAfterSeq(), stream: stream}
	for {
		if over, err := w.catchUp(ctx); over || err != nil {
			return err
		}
		if err := w.live(ctx, wake, poll.C, text); err != nil {
			return err
		}
	}
}

// watch is one open stream and how far it is.
type watch struct {
	Config
	caller  store.Caller
	session protocol.SessionID
	after   int64
	told    bool // caught_up_seq was sent for after
	level   bool // caught up at least once: what comes now is new
	stream  *connect.ServerStream[apiv1.WatchEventsResponse]
}

// catchUp sends what is durable and not sent yet. over means that nothing more
// can come.
func (w *watch) catchUp(ctx context.Context) (over bool, err error) {
	for {
		list, ended, err := w.read(ctx)
		if err != nil {
			return false, err
		}
		for _, e := range list {
			out, err := eventOut(e)
			if err != nil {
				return false, err
			}
			if err := w.send(&apiv1.WatchEventsResponse{Kind: &apiv1.WatchEventsResponse_Event{Event: out}}); err != nil {
				return false, err
			}
			w.after, w.told = e.Seq, false
			if w.level {
				w.DeliveredFunc(time.Since(e.At))
			}
		}
		if len(list) == watchBatch {
			continue
		}
		w.level = true
		if !w.told {
			w.told = true
			if err := w.send(&apiv1.WatchEventsResponse{Kind: &apiv1.WatchEventsResponse_CaughtUpSeq{CaughtUpSeq: w.after}}); err != nil {
				return false, err
			}
		}
		return ended, nil
	}
}

// read takes the next events, and asks the durable store again whether the
// caller may still see them: a suspended user's open stream ends. INV-9.
func (w *watch) read(ctx context.Context) (list []session.Stored, ended bool, err error) {
	err = w.Store.View(ctx, w.caller, func(tx *store.Tx) error {
		ended = false
		p, err := tx.Principal(w.caller.Principal())
		if err != nil {
			return err
		}
		if !p.DisabledAt.IsZero() {
			return refused("the principal was disabled")
		}
		ses, err := tx.Session(w.session)
		if err != nil {
			return err
		}
		if list, err = tx.Events(w.session, w.after, watchBatch); err != nil {
			return err
		}
		if over(ses.State) {
			_, err := tx.ActiveTurn(w.session)
			ended = isNotFound(err) && len(list) < watchBatch
			if err != nil && !isNotFound(err) {
				return err
			}
		}
		return nil
	})
	return list, ended, err
}

// over reports a session that will start no more turns.
func over(s session.State) bool {
	return s == session.Closed || s == session.Expired || s == session.Revoked
}

// live waits for the next reason to look, passing text on meanwhile.
func (w *watch) live(ctx context.Context, wake <-chan struct{}, poll <-chan time.Time, live <-chan engine.Live) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.Stopping:
			return stopping()
		case m := <-live:
			if err := w.send(liveOut(m)); err != nil {
				return err
			}
		case <-wake:
			return w.said(live)
		case <-poll:
			return nil
		}
	}
}

// said passes on the text that came before the event that is looked for now: after
// its turn's end nobody waits for it.
func (w *watch) said(live <-chan engine.Live) error {
	for {
		select {
		case m := <-live:
			if err := w.send(liveOut(m)); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// liveOut is what a watcher is told and nobody keeps.
func liveOut(m engine.Live) *apiv1.WatchEventsResponse {
	if m.Text != "" {
		return &apiv1.WatchEventsResponse{Kind: &apiv1.WatchEventsResponse_TextDelta{TextDelta: m.Text}}
	}
	return &apiv1.WatchEventsResponse{Kind: &apiv1.WatchEventsResponse_Staging{Staging: &apiv1.Staging{
		TurnId: m.Staging.Turn.String(), RunnerId: m.Staging.Runner.String(), SentBytes: m.Staging.Sent, OfBytes: m.Staging.Of}}}
}

func (w *watch) send(m *apiv1.WatchEventsResponse) error { return w.stream.Send(m) }

func stopping() error {
	return protocol.Errorf(protocol.CodeUnavailable, "the server is stopping; connect again, nothing that was sent is repeated")
}
