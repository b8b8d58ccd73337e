package broker_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authoritytest"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
	"bivouac/server/capability"
)

const (
	newToolKey  = "tok-rotated/5555+5555-five"
	newModelKey = "sk-rotated-7777777777"
)

// A credential is set again while a request is under way: that one ends as it
// began, the next one uses the new value, and neither value comes back. INV-17.
func TestRotation(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		set := func(name, value string) {
			t.Helper()
			_, err := server.authority.PutCredential(t.Context(), &brokerv1.PutCredentialRequest{
				TenantId: w.tenant.String(), Name: name, Sealed: authoritytest.Seal(t, w.keys, name, value)})
			w.must(err)
		}
		began, goOn := make(chan string, 2), make(chan struct{})
		w.tools.answers(func(out http.ResponseWriter, r *http.Request) {
			began <- r.Header.Get("Authorization")
			<-goOn
			fmt.Fprintf(out, "it was %s, it is %s, I got %s", toolKey, newToolKey, r.Header.Get("Authorization"))
		})
		type answer struct {
			res *brokerv1.InvokeResponse
			err error
		}
		first := make(chan answer, 1)
		go func() {
			res, err := server.broker.Invoke(t.Context(), w.invocation(nil, nil))
			first <- answer{res, err}
		}()
		if got := <-began; got != "Bearer "+toolKey {
			t.Errorf("the first request carries %q", got)
		}
		set("weather-key", newToolKey)
		close(goOn)
		if a := <-first; a.err != nil || a.res.GetHttpStatus() != 200 || strings.Contains(string(a.res.GetBody()), toolKey) {
			t.Errorf("under way: %s, %v", a.res.GetBody(), a.err)
		}
		res, err := server.broker.Invoke(t.Context(), w.invocation(nil, nil))
		if got := <-began; got != "Bearer "+newToolKey || err != nil {
			t.Errorf("the next request carries %q, %v", got, err)
		}
		if want := "it was " + secret.Mark + ", it is " + secret.Mark + ", I got Bearer " + secret.Mark; string(res.GetBody()) != want {
			t.Errorf("the answer is %q", res.GetBody())
		}
		// The same of a model route, whose old key no request of this start has used.
		set("provider-key", newModelKey)
		var key string
		w.next(func(out http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			key = r.Header.Get("Authorization")
			out.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(out, "data: {\"choices\":[{\"delta\":{\"content\":%q},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n", modelKey+" then "+newModelKey)
		})
		text, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), "main", "hello"))
		if err != nil || key != "Bearer "+newModelKey || text != secret.Mark+" then "+secret.Mark {
			t.Errorf("key %q, answer %q, %v", key, text, err)
		}
	})
}

// What works for a session is the capability of its running work, and it rotates:
// when authority changes, the one that worked is refused, and one that is made
// under the new authority works. INV-13, INV-16.
func TestHandlesRotate(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		const none = 1<<63 - 1
		works := func(c capability.Claims) error {
			c.ID = newID[protocol.CapabilityKind]()
			_, _, err := call(t.Context(), server, modelRequest(w.sign(c), "main", "hello"))
			return err
		}
		ends := func(kind brokerv1.FloorKind, id string, minimum int64) func(capability.Claims) {
			return func(capability.Claims) { w.feed.raise(kind, id, minimum) }
		}
		for name, tc := range map[string]struct {
			change func(c capability.Claims)                 // of authority
			next   func(capability.Claims) capability.Claims // the new handle
		}{
			"the instance is recreated": {func(c capability.Claims) {
				ends(brokerv1.FloorKind_FLOOR_KIND_INSTANCE, c.Instance.String(), c.Generation+1)(c)
			}, func(c capability.Claims) capability.Claims { c.Generation++; return c }},
			"another replica owns the turn": {func(c capability.Claims) {
				ends(brokerv1.FloorKind_FLOOR_KIND_TURN, c.Turn.String(), int64(c.Fence)+1)(c)
			}, func(c capability.Claims) capability.Claims { c.Fence++; return c }},
			"the turn ended": {func(c capability.Claims) {
				ends(brokerv1.FloorKind_FLOOR_KIND_TURN, c.Turn.String(), none)(c)
			}, func(c capability.Claims) capability.Claims { c.Turn = newID[protocol.TurnKind](); return c }},
			"the session is closed": {func(c capability.Claims) {
				ends(brokerv1.FloorKind_FLOOR_KIND_SESSION, c.Session.String(), none)(c)
			}, func(c capability.Claims) capability.Claims {
				c.Session, c.Turn = newID[protocol.SessionKind](), newID[protocol.TurnKind]()
				return c
			}},
			"another grant": {func(c capability.Claims) {
				_, err := server.authority.RevokeGrant(t.Context(), &brokerv1.RevokeGrantRequest{GrantId: c.Grant.String()})
				w.must(err)
			}, func(c capability.Claims) capability.Claims {
				g := w.grant
				g.ID = newID[protocol.GrantKind]()
				sealed, err := w.keys.CreateGrant(t.Context(), g)
				w.must(err)
				c.Grant, c.SealedGrant = g.ID, sealed
				w.grant, w.sealed = g, sealed
				return c
			}},
		} {
			c := w.claims(nil)
			if err := works(c); err != nil {
				t.Errorf("%s: before: %v", name, err)
			}
			tc.change(c)
			w.await(func() bool { return works(c) != nil })
			if err := works(c); !strings.HasPrefix(err.Error(), "refused by authority: ") {
				t.Errorf("%s: the old handle: %v", name, err)
			}
			if err := works(tc.next(c)); err != nil {
				t.Errorf("%s: the new handle: %v", name, err)
			}
		}
	})
}
