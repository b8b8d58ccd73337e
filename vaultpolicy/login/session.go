package login

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

const (
	// retryMin and retryMax bound the wait after a login that failed.
	retryMin = time.Second
	retryMax = 15 * time.Second
	// nearEnd is where a token is not renewed any more, but made anew.
	nearEnd = 30 * time.Second
)

// Session is the broker's login. Its methods are safe for concurrent use.
type Session struct {
	client *client.Client
	auth   Auth
	log    *slog.Logger

	one  chan struct{} // one login or renewal at a time
	held atomic.Pointer[held]
	// cluster is whose the grants are; strangers is the last other one that answered.
	cluster, strangers atomic.Pointer[string]

	failed  failure // guarded by one
	refused refusal // guarded by one
	// said is why there is no login, as the log has it; dead is the token whose refusal
	// it has.
	said atomic.Pointer[string]
	dead atomic.Pointer[held]
	// alarm is a wrapped secret id that was intercepted.
	alarm atomic.Pointer[Intercepted]
	// anew tells Run that the token changed under it.
	anew chan struct{}
}

// failure is the last login that failed. For a moment it is everybody's answer, so
// that many callers are not many logins.
type failure struct {
	at  time.Time
	err error
}

// held is a token, and what is known of it.
type held struct {
	client.Login
	at time.Time
}

// New logs in nowhere: Run does, and whoever needs the token first.
func New(c *client.Client, a Auth, log *slog.Logger) *Session {
	return &Session{client: c, auth: a, log: log, one: make(chan struct{}, 1), anew: make(chan struct{}, 1)}
}

// Do runs a request with the broker's token. Where it is refused because the token
// is dead, it runs once more with a new one. A refusal that stays is the right's.
func (s *Session) Do(ctx context.Context, run func(ctx context.Context, token secret.Value) error) error {
	h := s.held.Load()
	if h == nil {
		var err error
		if h, err = s.replace(ctx, nil); err != nil {
			return err
		}
	}
	err := run(ctx, h.Token)
	if client.KindOf(err) != client.Refused {
		return err
	}
	now, proof := s.prove(ctx, h)
	switch {
	case proof != nil:
		return proof
	case now == h:
		return err
	}
	return run(ctx, now.Token)
}

// Prove asks whether the server is the one that it was, and whether the broker's token
// lives there, and logs in again where it does not. What it returns nil for can be
// trusted about others.
func (s *Session) Prove(ctx context.Context) error {
	_, err := s.prove(ctx, s.held.Load())
	return err
}

func (s *Session) prove(ctx context.Context, h *held) (*held, error) {
	if h == nil {
		return s.replace(ctx, nil)
	}
	if _, err := s.sameCluster(ctx); err != nil {
		return nil, err
	}
	l, err := lookupSelf(ctx, s.client, h.Token)
	if err == nil && l.Accessor != h.Accessor {
		err = s.client.Strange("read", selfPath)
	}
	if err == nil {
		return h, nil
	}
	if client.KindOf(err) != client.Refused {
		return nil, err
	}
	if s.dead.Swap(h) != h {
		s.log.WarnContext(ctx, "the broker's token is refused: it logs in again", "accessor", h.Accessor)
	}
	return s.replace(ctx, h)
}

// replace logs in, unless somebody else did since old was taken.
func (s *Session) replace(ctx context.Context, old *held) (*held, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	if h := s.held.Load(); h != old {
		return h, nil
	}
	if s.failed.err != nil && time.Since(s.failed.at) < retryMin {
		return nil, s.failed.err
	}
	l, err := s.logIn(ctx)
	if err != nil {
		if ctx.Err() == nil { // else it is the caller's
			s.failed = failure{time.Now(), err}
			s.complain(ctx, err)
		}
		return nil, err
	}
	s.failed, s.refused = failure{}, refusal{}
	s.said.Store(nil)
	h := &held{l, time.Now()}
	s.held.Store(h)
	select {
	case s.anew <- struct{}{}:
	default:
	}
	s.log.InfoContext(ctx, "the broker is logged in", "server", s.client.Address(), "method", s.auth.Method, "accessor", l.Accessor, "ttl", l.TTL)
	return h, nil
}

// logIn at the server that it was.
func (s *Session) logIn(ctx context.Context) (client.Login, error) {
	cluster, err := s.sameCluster(ctx)
	if err != nil {
		return client.Login{}, err
	}
	s.takeWrapped(ctx)
	file := stampOf(s.auth.File)
	if err := s.refused.stands(file); err != nil {
		return client.Login{}, err
	}
	l, err := s.auth.login(ctx, s.client)
	if err != nil {
		said := s.describe(err)
		if s.auth.counted(err) {
			s.refused.note(said, file)
		}
		return client.Login{}, said
	}
	return l, s.bind(ctx, cluster)
}

// complain says why there is no login, once for each reason.
func (s *Session) complain(ctx context.Context, err error) {
	text := err.Error()
	if last := s.said.Swap(&text); last == nil || *last != text {
		s.log.ErrorContext(ctx, "the broker's login", "error", err)
	}
}

// describe says what a refused login is about. The refusal is in its words alone:
// nobody must take it for one of whatever was asked with the token.
func (s *Session) describe(err error) error {
	if k := client.KindOf(err); k == "" || k.Unknown() {
		return err
	}
	denied := &Denied{err.Error()}
	if unlock := s.auth.Unlock(); unlock != "" {
		return protocol.Errorf(protocol.CodeUnavailable, "the broker cannot log in (%s): %w; mend its files or its role: it tries another file at once, and the same one seldom, because the server may lock its role id out for wrong ones; where the right one is refused too: %s", s.auth.Method, denied, unlock)
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the broker cannot log in (%s): %w; mend its files or its role, it tries again by itself", s.auth.Method, denied)
}

// Denied is what the server said of a login that it does not take, in words alone.
type Denied struct{ said string }

func (d *Denied) Error() string { return d.said }

// Holder is whose the token is that is held; it is nowhere in it. Empty: there is none.
func (s *Session) Holder() string {
	h := s.held.Load()
	if h == nil {
		return ""
	}
	return " (accessor " + h.Accessor + ", policies " + strings.Join(h.Policies, ", ") + ")"
}

func (s *Session) enter(ctx context.Context) error {
	select {
	case s.one <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Session) leave() { <-s.one }

// Run renews the token until ctx ends.
func (s *Session) Run(ctx context.Context) error {
	wait := time.Duration(0)
	failed := 0
	for {
		timer := time.NewTimer(s.look(wait))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-s.anew:
			timer.Stop()
			failed, wait = 0, s.next()
			continue
		case <-timer.C:
		}
		if s.held.Load() != nil {
			s.takeWrapped(ctx)
		}
		if err := s.tick(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			wait = min(retryMin<<min(failed, 6), retryMax)
			failed++
			s.complain(ctx, err)
			continue
		}
		failed, wait = 0, s.next()
	}
}

// look bounds a wait while a wrapped secret id may come.
func (s *Session) look(wait time.Duration) time.Duration {
	if s.auth.Wrapped == "" {
		return wait
	}
	return min(wait, wrappedEvery)
}

// next is when the token wants care again: at half of what it has left.
func (s *Session) next() time.Duration {
	h := s.held.Load()
	switch {
	case h == nil:
		return 0
	case h.TTL == 0:
		return time.Hour
	}
	return max(time.Until(h.at.Add(h.TTL/2)), 0)
}

// tick logs in, or renews what is held.
func (s *Session) tick(ctx context.Context) error {
	h := s.held.Load()
	if h == nil {
		_, err := s.replace(ctx, nil)
		return err
	}
	if s.next() > 0 || h.TTL == 0 {
		return nil
	}
	left := time.Until(h.at.Add(h.TTL))
	if h.Renewable {
		renewed, err := s.renew(ctx, h)
		if err != nil && client.KindOf(err).Unknown() && left > nearEnd {
			return err
		}
		// A renewal that gives little is the way in which these servers say that the
		// end is near.
		if err == nil && renewed.TTL > max(nearEnd, h.TTL/4) || err == nil && renewed.TTL >= h.TTL {
			return nil
		}
	}
	_, err := s.replace(ctx, s.held.Load())
	return err
}

func (s *Session) renew(ctx context.Context, h *held) (*held, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	if now := s.held.Load(); now != h {
		return now, nil
	}
	a, err := s.client.Write(ctx, h.Token, "auth/token/renew-self", map[string]any{})
	if err != nil {
		return nil, err
	}
	next := &held{h.Login, time.Now()}
	next.TTL, next.Renewable = a.Login.TTL, a.Login.Renewable
	s.held.Store(next)
	return next, nil
}
