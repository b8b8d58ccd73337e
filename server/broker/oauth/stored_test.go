package oauth

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// A refresh token that cannot be stored is kept, used, written again and told; a
// restart after that goes on with it. INV-18.
func TestReplacedWhileTheStoreIsAway(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.shelf.set(true, "")
		r.want("access-token-canary-1")
		report := finding.From("broker")
		r.tokens.Examine(report)
		if len(report.All) != 1 || report.All[0].Level != finding.Problem || !strings.Contains(report.All[0].What, "not stored yet") {
			t.Errorf("%+v", report.All)
		}
		time.Sleep(2 * time.Hour)
		r.want("access-token-canary-2") // with the token that is in memory alone
		if r.shelf.stored().Reveal() != first {
			t.Error("stored, though it could not be")
		}
		r.shelf.set(false, "")
		time.Sleep(saveAgain + time.Second)
		if got := r.shelf.stored().Reveal(); got != "refresh-token-canary-3" {
			t.Errorf("stored is %q", got)
		}
		report = finding.From("broker")
		r.tokens.Examine(report)
		if report.All[0].Level == finding.Problem {
			t.Errorf("%+v", report.All)
		}
	})
}

// A refresh token that could not be stored waits for a request that is under way when it
// is its turn, and is stored after that, also when the request failed, and at the end
// of the broker. INV-18.
func TestNotStoredBesideARequest(t *testing.T) {
	// begin leaves the refresh token of a request unstored, and makes the next fail.
	begin := func(t *testing.T, r *room) {
		r.shelf.set(true, "")
		r.want("access-token-canary-1")
		r.issuer.mu.Lock()
		r.issuer.answer = func(w http.ResponseWriter, _ url.Values) { fail(w, 503, "server_error") }
		r.issuer.mu.Unlock()
		time.Sleep(saveAgain - 500*time.Millisecond)
		one, _ := secret.New("access-token-canary-1")
		r.tokens.Refused(tenant, "calendar", one)
	}
	stored := func(t *testing.T, r *room) {
		t.Helper()
		if got := r.shelf.stored().Reveal(); got != "refresh-token-canary-2" {
			t.Errorf("stored is %q", got)
		}
	}
	t.Run("the broker goes on", func(t *testing.T) {
		inRoom(t, nil, func(t *testing.T, r *room) {
			begin(t, r)
			if got, err := r.access(); protocol.CodeOf(err) != protocol.CodeUnavailable {
				t.Errorf("got %q, %v", got, err)
			}
			r.shelf.set(false, "")
			time.Sleep(saveAgain + time.Second)
			stored(t, r)
		})
	})
	t.Run("the broker ends", func(t *testing.T) {
		var left *room
		inRoom(t, nil, func(t *testing.T, r *room) {
			left = r
			begin(t, r)
			go r.access()
			synctest.Wait() // its request is under way
			r.shelf.set(false, "")
		})
		stored(t, left)
	})
}

// spy is told of a line before whoever wrote it goes on.
type spy struct {
	slog.Handler
	told func(line string)
}

func (s spy) Handle(ctx context.Context, r slog.Record) error {
	s.told(r.Message)
	return s.Handler.Handle(ctx, r)
}

// Who was let go by one request begins the next at once, while the one before still
// writes its last word.
func TestRequestAfterRequest(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		other, _ := secret.New("refresh-token-canary-8") // which a person stores
		var begun, ended atomic.Bool
		r.tokens.log = slog.New(spy{slog.NewTextHandler(&r.log, nil), func(line string) {
			if line != "access token" || begun.Swap(true) {
				return
			}
			r.issuer.mu.Lock()
			r.issuer.good = other.Reveal()
			r.issuer.mu.Unlock()
			r.shelf.set(false, other.Reveal())
			if a, err := r.tokens.Access(t.Context(), tenant, "calendar", other); err != nil || a.Token.Reveal() != "access-token-canary-2" {
				t.Errorf("the next: %q, %v", a.Token.Reveal(), err)
			}
			ended.Store(true)
		}})
		_, _ = r.access() // what it was given counts no more
		time.Sleep(3 * time.Second)
		if !ended.Load() {
			t.Error("no request followed")
		}
		r.want("access-token-canary-2")
	})
}

// A credential that somebody deleted while its refresh token waits to be stored is not
// written again: the token is let go, and that is found until another is stored.
func TestDeletedWhileTheStoreIsAway(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.shelf.set(true, "")
		r.want("access-token-canary-1")
		r.shelf.mu.Lock()
		r.shelf.broken, r.shelf.gone = false, true
		r.shelf.mu.Unlock()
		time.Sleep(saveAgain + time.Second)
		found := func() finding.Finding {
			t.Helper()
			report := finding.From("broker")
			r.tokens.Examine(report)
			if len(report.All) != 1 || strings.Contains(fmt.Sprint(report.All), "canary") {
				t.Fatalf("%+v", report.All)
			}
			return report.All[0]
		}
		if f := found(); f.Level != finding.Warning || !strings.Contains(f.What, "was let go") || !strings.Contains(f.Mend, "bivouac credential set calendar") {
			t.Errorf("%+v", f)
		}
		if len(r.tokens.open()) != 0 || len(r.shelf.writes) != 0 {
			t.Errorf("it goes on: %d open, written %d times", len(r.tokens.open()), len(r.shelf.writes))
		}
		r.shelf.mu.Lock()
		r.shelf.gone = false
		r.shelf.mu.Unlock()
		r.shelf.set(false, r.issuer.good) // a person stores another
		r.want("access-token-canary-2")
		if f := found(); f.Level == finding.Warning || len(r.shelf.writes) != 1 {
			t.Errorf("after that: %+v, written %d times", f, len(r.shelf.writes))
		}
	})
}

// What a person stored while a token was renewed counts, and not what it replaces.
func TestStoredMeanwhile(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		synctest.Wait() // it has started
		stored := r.shelf.stored()
		time.AfterFunc(500*time.Millisecond, func() { r.shelf.set(false, "refresh-token-canary-8") })
		_, _ = r.tokens.Access(t.Context(), tenant, "calendar", stored)
		if r.shelf.stored().Reveal() != "refresh-token-canary-8" {
			t.Error("a person's credential was written over")
		}
		r.issuer.mu.Lock()
		r.issuer.good = "refresh-token-canary-8"
		r.issuer.mu.Unlock()
		if got, err := r.access(); err != nil || got == "access-token-canary-1" {
			t.Errorf("%q, %v", got, err)
		}
	})
}
