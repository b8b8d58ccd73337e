package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/secret"
)

// A token is got once, used until shortly before its end, and got anew then; each
// refresh token that the server gave is stored before anybody has its access token.
func TestTokensAreGotBeforeTheirEnd(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.want("access-token-canary-1")
		if r.shelf.stored().Reveal() != "refresh-token-canary-2" {
			t.Error("the refresh token was not stored")
		}
		time.Sleep(58 * time.Minute)
		r.want("access-token-canary-1")
		time.Sleep(90 * time.Second)
		r.want("access-token-canary-2")
		if got := r.shelf.writes; !slices.Equal(got, []string{"refresh-token-canary-2", "refresh-token-canary-3"}) {
			t.Errorf("stored %q", got)
		}
		if f := r.issuer.asked[1]; f.Get("refresh_token") != "refresh-token-canary-2" || f.Get("client_secret") != "" || r.issuer.basic[1] != "bivouac:"+clientSecret {
			t.Errorf("asked with %v", f)
		}
	})
}

// Many who need a token send one request, also those who hold what it replaces.
func TestOneRequestForMany(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		old := r.shelf.stored()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if a, err := r.tokens.Access(t.Context(), tenant, "calendar", old); err != nil || a.Token.Reveal() != "access-token-canary-1" {
					t.Errorf("%v", err)
				}
			})
		}
		all.Wait()
		if a, err := r.tokens.Access(t.Context(), tenant, "calendar", old); err != nil || r.issuer.count() != 1 {
			t.Errorf("%d requests, %v", r.issuer.count(), err)
		} else if hidden := secret.NewRedactor(a.Hidden...); !hidden.Found(first) || !hidden.Found("refresh-token-canary-2") || !hidden.Found(clientSecret) {
			t.Error("an answer may repeat what the token was made of")
		}
	})
}

// Who goes does not take the request along: its answer is stored.
func TestNobodyEndsARequest(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := r.tokens.Access(ctx, tenant, "calendar", r.shelf.stored()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		time.Sleep(2 * time.Second)
		if r.shelf.stored().Reveal() != "refresh-token-canary-2" || r.issuer.count() != 1 {
			t.Error("the answer was lost")
		}
		r.want("access-token-canary-1")
	})
}

// A refresh token that was revoked is a refusal of its own kind, with the command that
// mends it, and asks nobody again before another is stored. INV-17.
func TestRevokedRefreshToken(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.issuer.good = "none"
		for range 3 {
			_, err := r.access()
			if protocol.CodeOf(err) != protocol.CodeFailedPrecondition || protocol.DetailOf(err) != protocol.DetailCredentialRefused ||
				!strings.Contains(err.Error(), "bivouac credential set calendar") || strings.Contains(err.Error(), "canary") {
				t.Errorf("%v", err)
			}
		}
		report := finding.From("broker")
		r.tokens.Examine(report)
		if len(report.All) != 1 || report.All[0].Level != finding.Problem || strings.Contains(fmt.Sprint(report.All), "canary") {
			t.Errorf("%+v", report.All)
		}
		if r.issuer.count() != 1 {
			t.Errorf("asked %d times", r.issuer.count())
		}
		r.issuer.mu.Lock()
		r.issuer.good = "refresh-token-canary-9"
		r.issuer.mu.Unlock()
		r.shelf.set(false, "refresh-token-canary-9")
		r.want("access-token-canary-1")
	})
}

// A token that the upstream refuses is got anew, and a new one is not.
func TestRefusedTokens(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.want("access-token-canary-1")
		one, _ := secret.New("access-token-canary-1")
		r.tokens.Refused(tenant, "calendar", one)
		r.want("access-token-canary-1") // it is new: another would be refused too
		time.Sleep(time.Minute)
		other, _ := secret.New("access-token-canary-0")
		r.tokens.Refused(tenant, "calendar", other)
		r.want("access-token-canary-1")
		r.tokens.Refused(tenant, "calendar", one)
		r.want("access-token-canary-2")
	})
}

// A server that is away does not end a token that is good still, and a wait is short.
func TestServerAway(t *testing.T) {
	inRoom(t, nil, func(t *testing.T, r *room) {
		r.want("access-token-canary-1")
		r.issuer.mu.Lock()
		r.issuer.answer = func(w http.ResponseWriter, _ url.Values) { fail(w, 503, "server_error") }
		r.issuer.mu.Unlock()
		time.Sleep(59*time.Minute + 30*time.Second)
		r.want("access-token-canary-1")
		time.Sleep(time.Minute)
		if _, err := r.access(); protocol.CodeOf(err) != protocol.CodeUnavailable || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v", err)
		}
		r.issuer.mu.Lock()
		r.issuer.answer = nil
		r.issuer.mu.Unlock()
		time.Sleep(failedFor)
		r.want("access-token-canary-2")
	})
}

// What a server answers otherwise is a refusal in our words, and no word of its own.
// The twin is every test above. INV-17.
func TestStrangeAnswers(t *testing.T) {
	says := func(text string) func(http.ResponseWriter, url.Values) {
		return func(w http.ResponseWriter, _ url.Values) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, text)
		}
	}
	for name, tc := range map[string]struct {
		answer func(http.ResponseWriter, url.Values)
		want   protocol.Code
		mend   string
	}{
		"no token":            {says(`{"token_type":"bearer"}`), protocol.CodeUnavailable, ""},
		"no JSON":             {says(`<p>` + first), protocol.CodeUnavailable, ""},
		"another kind":        {says(`{"access_token":"access-token-canary","token_type":"mac"}`), protocol.CodeFailedPrecondition, ""},
		"a short token":       {says(`{"access_token":"short","token_type":"bearer"}`), protocol.CodeFailedPrecondition, ""},
		"a line end":          {says(`{"access_token":"access-token\r\nX: canary","token_type":"bearer"}`), protocol.CodeFailedPrecondition, ""},
		"a bad refresh token": {says(`{"access_token":"access-token-canary","refresh_token":"x","token_type":"bearer"}`), protocol.CodeFailedPrecondition, "bivouac credential set calendar"},
		"a redirect": {func(w http.ResponseWriter, _ url.Values) {
			w.Header().Set("Location", "https://x/"+first)
			w.WriteHeader(302)
		}, protocol.CodeFailedPrecondition, "token_url"},
		"the client":        {func(w http.ResponseWriter, _ url.Values) { fail(w, 401, "invalid_client") }, protocol.CodeFailedPrecondition, "bivouac credential set calendar-client"},
		"a code of its own": {func(w http.ResponseWriter, _ url.Values) { fail(w, 400, first) }, protocol.CodeFailedPrecondition, "token_url"},
		"too many":          {func(w http.ResponseWriter, _ url.Values) { w.WriteHeader(429) }, protocol.CodeUnavailable, ""},
		"nothing":           {func(http.ResponseWriter, url.Values) { time.Sleep(requestTimeout) }, protocol.CodeUnavailable, ""},
	} {
		inRoom(t, nil, func(t *testing.T, r *room) {
			r.issuer.answer = tc.answer
			_, err := r.access()
			if protocol.CodeOf(err) != tc.want || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), tc.mend) {
				t.Errorf("%s: %v", name, err)
			}
			if r.shelf.stored().Reveal() != first {
				t.Errorf("%s: the refresh token was replaced", name)
			}
		})
	}
}

// A client's own secret is good for tokens too, and is never rotated.
func TestClientCredentials(t *testing.T) {
	inRoom(t, func(c *Config) {
		c.Grant, c.Secret, c.InBody, c.Scopes, c.Audience = ClientCredentials, "", true, []string{"read", "write"}, "api"
	}, func(t *testing.T, r *room) {
		r.want("access-token-canary-1")
		f := r.issuer.asked[0]
		if f.Get("grant_type") != ClientCredentials || f.Get("client_secret") != first || f.Get("scope") != "read write" || f.Get("audience") != "api" || f.Get("refresh_token") != "" {
			t.Errorf("asked with %v", f)
		}
		if len(r.shelf.writes) != 0 {
			t.Error("the client's secret was replaced")
		}
	})
}

// After the end nothing is got.
func TestAfterTheEnd(t *testing.T) {
	var left *room
	inRoom(t, nil, func(t *testing.T, r *room) { left = r })
	left.t = t
	if _, err := left.access(); protocol.CodeOf(err) != protocol.CodeUnavailable {
		t.Errorf("%v", err)
	}
}

// A token counts as long as its answer says, with either grant, and not longer than the
// broker lets one that says nothing.
func TestLifeOfEitherGrant(t *testing.T) {
	for _, grant := range []string{RefreshToken, ClientCredentials} {
		for in, want := range map[any]int{300: 2, "300": 2, 3600: 1} { // seconds, and tokens in ten minutes
			t.Run(fmt.Sprintf("%s %T %v", grant, in, in), func(t *testing.T) {
				inRoom(t, func(c *Config) {
					if c.Grant = grant; grant == ClientCredentials {
						c.Secret = ""
					}
				}, func(t *testing.T, r *room) {
					n := 0
					r.issuer.answer = func(w http.ResponseWriter, _ url.Values) {
						n++
						w.Header().Set("Content-Type", "application/json")
						_ = json.NewEncoder(w).Encode(map[string]any{"access_token": fmt.Sprintf("access-token-canary-%d", n), "token_type": "bearer", "expires_in": in})
					}
					r.want("access-token-canary-1")
					time.Sleep(time.Minute)
					r.want("access-token-canary-1")
					time.Sleep(9 * time.Minute)
					r.want(fmt.Sprintf("access-token-canary-%d", want))
				})
			})
		}
	}
}
