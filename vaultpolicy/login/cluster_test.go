package login

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/vaultpolicy/client"
)

// Another server that takes the same login is no place to log in: the session says so
// with both names, and goes on where it began.
func TestAnotherServer(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := &server{living: map[string]time.Time{}, born: map[string]time.Time{}, ttl: time.Hour, max: 24 * time.Hour, secret: "secret-0123456789", id: "blue"}
		w := &world{server: s, file: filepath.Join(dir, "secret-id")}
		w.write(t, s.secret)
		w.Session = New(quiet(t, s), Auth{Method: AppRole, Mount: "approle", RoleID: "r", File: w.file}, slog.New(slog.DiscardHandler))
		if err := w.Prove(t.Context()); err != nil {
			t.Fatal(err)
		}
		token := w.held.Load().Token
		blue := w.living
		w.with(func() { w.id, w.living = "green", map[string]time.Time{} })
		for what, ask := range map[string]func(context.Context) error{"a proof": w.Prove, "a request": w.ask, "a tick": func(ctx context.Context) error {
			_, err := w.replace(ctx, w.held.Load())
			return err
		}} {
			err := ask(t.Context())
			var other *Other
			if protocol.CodeOf(err) != protocol.CodeUnavailable || !errors.As(err, &other) || other.Was != "blue" || other.Is != "green" || !strings.Contains(err.Error(), "restart the broker") {
				t.Errorf("%s: %v", what, err)
			}
		}
		w.with(func() {
			if w.logins != 1 || len(w.living) > 0 {
				t.Errorf("%d logins", w.logins)
			}
			w.id, w.living = "blue", blue
		})
		time.Sleep(retryMin) // a login that failed is everybody's answer for so long
		if err := w.Prove(t.Context()); err != nil || !w.held.Load().Token.Equal(token.Reveal()) {
			t.Errorf("back at the first: %v", err)
		}
		if err := w.ask(t.Context()); err != nil {
			t.Errorf("a request then: %v", err)
		}
	})
}

// An answer that is not about the broker's own token proves nothing.
func TestProofIsOwn(t *testing.T) {
	w := newWorld(t)
	if err := w.Prove(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{
		`{}`, `<html>Welcome</html>`, `{"data":{"accessor":"of-hvs.made-00000001"}}`,
		`{"request_id":"r","lease_id":"","lease_duration":0,"data":{"initialized":true},"auth":null}`,
	} {
		w.with(func() { w.strange = said })
		if err := w.Prove(t.Context()); client.KindOf(err) != client.Away {
			t.Errorf("%s: %v", said, err)
		}
	}
	for _, data := range []string{`{}`, `{"accessor":"of-somebody"}`, `{"accessor":"","id":"hvs.other"}`} {
		about := New(quiet(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "lookup-self") {
				fmt.Fprintf(rw, `{"request_id":"r","lease_id":"","lease_duration":0,"data":%s,"auth":null}`, data)
				return
			}
			fmt.Fprint(rw, `{"initialized":true,"sealed":false,"cluster_id":"blue"}`)
		})), w.auth, slog.New(slog.DiscardHandler))
		about.held.Store(w.held.Load())
		if err := about.Prove(t.Context()); client.KindOf(err) != client.Away {
			t.Errorf("%s: %v", data, err)
		}
	}
	w.with(func() { w.strange = "" })
	if err := w.Prove(t.Context()); err != nil {
		t.Error(err)
	}
}
