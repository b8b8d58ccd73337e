package api

import (
	"context"
	"errors"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/engine"
	"bivouac/server/session"
	"bivouac/server/store"
)

// Bounds of a page.
const (
	defaultPage = 50
	maxPage     = 500
)

func pageOf(p *apiv1.Page) (limit int, cursor string) {
	limit = int(p.GetLimit())
	if limit <= 0 {
		limit = defaultPage
	}
	return min(limit, maxPage), p.GetCursor()
}

type sessions struct{ Config }

func (s sessions) CreateSession(ctx context.Context, r *apiv1.CreateSessionRequest) (*apiv1.CreateSessionResponse, error) {
	ses, err := s.Engine.CreateSession(ctx, callerOf(ctx), engine.NewSession{Agent: r.GetAgent(), IdempotencyKey: r.GetIdempotencyKey()})
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateSessionResponse{Session: sessionOut(ses)}, nil
}

func (s sessions) GetSession(ctx context.Context, r *apiv1.GetSessionRequest) (*apiv1.GetSessionResponse, error) {
	id, err := protocol.ParseID[protocol.SessionKind](r.GetSessionId())
	if err != nil {
		return nil, err
	}
	var out *apiv1.Session
	err = s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		ses, err := tx.Session(id)
		if err != nil {
			return err
		}
		out, err = sessionWithQueue(tx, ses)
		return err
	})
	return &apiv1.GetSessionResponse{Session: out}, err
}

// sessionWithQueue adds what is going on in the session.
func sessionWithQueue(tx *store.Tx, ses session.Session) (*apiv1.Session, error) {
	out := sessionOut(ses)
	depth, err := tx.QueueDepth("", "", ses.ID)
	if err != nil {
		return nil, err
	}
	out.QueuedTurns = int32(depth)
	active, err := tx.ActiveTurn(ses.ID)
	if err == nil {
		out.ActiveTurn = active.ID.String()
	} else if !isNotFound(err) {
		return nil, err
	}
	return out, nil
}

func (s sessions) ListSessions(ctx context.Context, r *apiv1.ListSessionsRequest) (*apiv1.ListSessionsResponse, error) {
	limit, cursor := pageOf(r.GetPage())
	out := &apiv1.ListSessionsResponse{}
	err := s.Store.View(ctx, callerOf(ctx), func(tx *store.Tx) error {
		out.Sessions = nil
		list, next, err := tx.Sessions(limit, cursor)
		if err != nil {
			return err
		}
		out.NextCursor = next
		for _, ses := range list {
			one, err := sessionWithQueue(tx, ses)
			if err != nil {
				return err
			}
			out.Sessions = append(out.Sessions, one)
		}
		return nil
	})
	return out, err
}

func (s sessions) CloseSession(ctx context.Context, r *apiv1.CloseSessionRequest) (*apiv1.CloseSessionResponse, error) {
	id, err := protocol.ParseID[protocol.SessionKind](r.GetSessionId())
	if err != nil {
		return nil, err
	}
	end := s.Engine.CloseSession
	if r.GetNow() {
		end = s.Engine.EndSession
	}
	ses, err := end(ctx, callerOf(ctx), id)
	if err != nil {
		return nil, err
	}
	return &apiv1.CloseSessionResponse{Session: sessionOut(ses)}, nil
}

// EraseSession takes the words and keeps the record. INV-8.
func (s sessions) EraseSession(ctx context.Context, r *apiv1.EraseSessionRequest) (*apiv1.EraseSessionResponse, error) {
	id, err := protocol.ParseID[protocol.SessionKind](r.GetSessionId())
	if err != nil {
		return nil, err
	}
	ses, err := s.Engine.EraseSession(ctx, callerOf(ctx), id)
	if err != nil {
		return nil, err
	}
	return &apiv1.EraseSessionResponse{Session: sessionOut(ses)}, nil
}

func isNotFound(err error) bool {
	return errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound})
}
