package vaultpolicy

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
)

// Who says that a token is gone, and cannot be proven to be the server, is not
// believed: the token is ended when the server answers. INV-13.
func TestEndIsNotTakenFromAnybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g, _ := w.grant(t)
		w.fake.with(func() {
			w.fake.fault = func(r *http.Request) (int, string) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/revoke-accessor"):
					return 403, "invalid accessor"
				case strings.HasSuffix(r.URL.Path, "/lookup-self"):
					return 500, "internal error"
				}
				return 0, ""
			}
		})
		_, err := w.RevokeGrant(t.Context(), g.ID)
		codeIs(t, "revoke", err, protocol.CodeUnavailable)
		codeIs(t, "alive", w.Alive(t.Context(), g.ID), protocol.CodePermissionDenied)
		if _, lives := w.lives(g); !lives || w.entry(g)["state"] != stateAlive {
			t.Errorf("the index says %v", w.entry(g))
		}
		w.fake.with(func() { w.fake.fault = nil })
		time.Sleep(defaultPoll + time.Second)
		if _, lives := w.lives(g); lives || w.entry(g)["state"] != stateRevoked {
			t.Errorf("its token lives: %t; the index says %v", lives, w.entry(g))
		}
	})
}

// Two end one token at the same time, and the second is told that its request is wrong:
// the token is gone, and the revocation has succeeded, also where what hung on it took
// the first a while. A server that goes on saying so has ended nothing. INV-13.
func TestTokenIsEndedByTwo(t *testing.T) {
	const forever = 1000
	for name, busy := range map[string]int{"it is gone": 0, "its leases are ended first": 4, "it is not": forever} {
		again, asked := busy == forever, 0
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				g, _ := w.grant(t)
				w.fake.with(func() {
					w.fake.fault = func(r *http.Request) (int, string) {
						if !strings.HasSuffix(r.URL.Path, "/revoke-accessor") {
							return 0, ""
						}
						if asked++; asked > busy {
							token := w.fake.tokenOf(g)
							w.fake.with(func() {
								w.fake.fault = nil
								delete(w.fake.tokens, token)
							})
						}
						return 400, "token not found"
					}
				})
				_, err := w.RevokeGrant(t.Context(), g.ID)
				if _, lives := w.lives(g); lives != again || (err != nil) != again {
					t.Errorf("its token lives: %t; the revocation: %v", lives, err)
				}
				w.fake.with(func() { w.fake.fault = nil })
			})
		})
	}
}
