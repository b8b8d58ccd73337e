package vaultpolicy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
)

// slowEnd is a server that ends tokens by accessor as one with raft does: the token is
// gone at once, the first answer comes after a time, and until then whoever ends it too
// is told that it is not found.
type slowEnd struct {
	fake   *fake
	takes  time.Duration
	first  func() (int, string) // the first answer
	asked  int                  // how often it was asked to end the token
	under  bool
	broken bool // it never knows that the accessor is gone
}

func (s *slowEnd) answer(token string) func(*http.Request) (int, string) {
	return func(r *http.Request) (int, string) {
		if !strings.HasSuffix(r.URL.Path, "/revoke-accessor") {
			return 0, ""
		}
		_, _ = io.Copy(io.Discard, r.Body)
		first, busy := false, false
		s.fake.with(func() {
			s.asked++
			first, busy = s.asked == 1, s.under || s.broken && s.asked > 1
			s.under = s.under || first
			delete(s.fake.tokens, token)
		})
		switch {
		case busy:
			return 400, `{"errors":["token not found"]}`
		case !first:
			return 403, `{"errors":["invalid accessor"]}`
		}
		time.Sleep(s.takes)
		s.fake.with(func() { s.under = false })
		return s.first()
	}
}

// However many come to end a grant while the server is at it, it is asked once, and
// everybody has its answer: who revokes it, who heard of it from a server, and the loop
// that tries again. INV-13.
func TestOneEndAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g, _ := w.grant(t)
		s := &slowEnd{fake: w.fake, takes: 4 * time.Second, first: func() (int, string) { return 204, "" }}
		w.fake.with(func() { w.fake.gateway = s.answer(w.fake.tokenOf(g)) })
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if got, err := w.RevokeGrant(t.Context(), g.ID); err != nil || got.RevokedAt.IsZero() {
					t.Errorf("%v, revoked at %v", err, got.RevokedAt)
				}
			})
			time.Sleep(90 * time.Millisecond)
		}
		all.Wait()
		time.Sleep(3 * defaultPoll)
		w.fake.with(func() { w.fake.gateway = nil })
		if s.asked != 1 {
			t.Errorf("the server was asked %d times to end one token", s.asked)
		}
		if w.entry(g)["state"] != stateRevoked || len(w.table.unfinished()) > 0 {
			t.Errorf("the index says %v, %d unfinished", w.entry(g), len(w.table.unfinished()))
		}
	})
}

// An end that worked is one, whatever became of the answer: where it is lost on its way,
// and where the server goes on saying that the token of the accessor is not found. INV-13.
func TestEndWithoutItsAnswer(t *testing.T) {
	for name, broken := range map[string]bool{"it says that the accessor is gone": false, "it says no more than that there is no token": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g, _ := w.grant(t)
				s := &slowEnd{fake: w.fake, broken: broken, first: func() (int, string) { return 502, "a page of something in between" }}
				w.fake.with(func() { w.fake.gateway = s.answer(w.fake.tokenOf(g)) })
				if _, err := w.RevokeGrant(t.Context(), g.ID); err != nil {
					t.Error(err)
				}
				w.fake.with(func() { w.fake.gateway = nil })
				if w.entry(g)["state"] != stateRevoked || len(w.table.unfinished()) > 0 {
					t.Errorf("the index says %v, %d unfinished", w.entry(g), len(w.table.unfinished()))
				}
			})
		})
	}
}

// Who waits for an end that another began goes on with it where the other went away, and
// has its failure where the server gave it one.
func TestEndIsHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, id := newEndings(), protocol.GrantID("grt_1")
		refused := protocol.Errorf(protocol.CodeUnavailable, "away")
		begun := make(chan error)
		go func() {
			_ = x.one(t.Context(), id, func() error { return <-begun })
		}()
		synctest.Wait()
		ran := 0
		waited := make(chan error)
		go func() { waited <- x.one(t.Context(), id, func() error { ran++; return nil }) }()
		synctest.Wait()
		begun <- refused
		if err := <-waited; protocol.CodeOf(err) != protocol.CodeUnavailable || ran != 0 {
			t.Errorf("%v; it ran %d times", err, ran)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_ = x.one(ctx, id, func() error { <-ctx.Done(); return ctx.Err() })
		}()
		synctest.Wait()
		go func() { waited <- x.one(t.Context(), id, func() error { ran++; return nil }) }()
		synctest.Wait()
		cancel()
		if err := <-waited; err != nil || ran != 1 || len(x.under) != 0 {
			t.Errorf("%v; it ran %d times; %d are left", err, ran, len(x.under))
		}
	})
}
