package session

import (
	"time"

	"bivouac/server/steptable"
)

// SessionEvent moves a session.
type SessionEvent string

const (
	// SessionClose: no new turns; those that wait are cancelled.
	SessionClose SessionEvent = "close"
	// SessionDrained: the last turn of a closing session ended.
	SessionDrained SessionEvent = "drained"
	// SessionExpire: idle too long, or past its maximum lifetime.
	SessionExpire SessionEvent = "expire"
	// SessionRevoke: the authority it stood on was taken back. INV-13.
	SessionRevoke SessionEvent = "revoke"
)

// SessionNext is the whole life of a session. INV-2.
var SessionNext = map[State]map[SessionEvent]State{
	Open: {
		SessionClose:  Closing,
		SessionExpire: Expired,
		SessionRevoke: Revoked,
	},
	Closing: {
		SessionDrained: Closed,
		SessionRevoke:  Revoked,
	},
	Closed:  {},
	Expired: {},
	Revoked: {},
}

// States and SessionEvents are all of them.
var (
	States        = []State{Open, Closing, Closed, Expired, Revoked}
	SessionEvents = []SessionEvent{SessionClose, SessionDrained, SessionExpire, SessionRevoke}
)

// Terminal reports a state without exits. INV-2.
func (s State) Terminal() bool { return s == Closed || s == Expired || s == Revoked }

// Step makes one legal step.
func (s Session) Step(ev SessionEvent, now time.Time) (Session, error) {
	to, err := steptable.Next("session "+s.ID.String(), SessionNext, s.State, ev)
	if err != nil {
		return s, err
	}
	s.State = to
	if ev == SessionClose {
		s.LastActiveAt = now
	}
	return s, nil
}

// Ends is when an open session reaches its idle or its maximum lifetime, and
// whether it is the idle one that comes first; zero for never.
func (s Session) Ends() (at time.Time, idle bool) {
	if s.IdleTTL > 0 {
		at, idle = s.LastActiveAt.Add(s.IdleTTL), true
	}
	if !s.ExpiresAt.IsZero() && (at.IsZero() || !at.Before(s.ExpiresAt)) {
		at, idle = s.ExpiresAt, false
	}
	return at, idle
}

// Due reports that an open session reached its idle or maximum lifetime.
func (s Session) Due(now time.Time) bool {
	at, _ := s.Ends()
	return s.State == Open && !at.IsZero() && !now.Before(at)
}

// Outlived reports that an open session reached its maximum lifetime: not even a
// turn that is at work keeps it.
func (s Session) Outlived(now time.Time) bool {
	return s.State == Open && !s.ExpiresAt.IsZero() && !now.Before(s.ExpiresAt)
}
