package login

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
)

// A secret id that is refused is tried so seldom that no server locks its role id out,
// whoever asks meanwhile; one that is put in its place is tried at once, and logs in. The
// log says why once.
func TestNoLockout(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := &server{living: map[string]time.Time{}, born: map[string]time.Time{}, ttl: time.Hour, max: 24 * time.Hour, secret: "secret-0123456789", id: "blue"}
		w := &world{server: s, file: filepath.Join(dir, "secret-id")}
		w.write(t, s.secret)
		var log strings.Builder // one writer at a time: slog sees to it
		w.Session = New(quiet(t, s), Auth{Method: AppRole, Mount: "approle", Role: "bivouac-broker", RoleID: "r", File: w.file}, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- w.Run(ctx) }()
		if err := w.ask(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.with(func() { clear(w.living); w.secret, w.logins = "rotated-0123456789", 0 })
		w.write(t, "wrong-0123456789")
		const counted = 15 * time.Minute // what a lockout counts
		for range int(counted / time.Second) {
			if err := w.ask(t.Context()); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "sys/locked-users/") {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		w.with(func() {
			if w.logins < 2 || w.logins > 4 {
				t.Errorf("%d logins with a refused secret id in %s: the fifth is locked out", w.logins, counted)
			}
			w.logins = 0
		})
		time.Sleep(24 * time.Hour)
		w.with(func() {
			if w.logins < 24 || w.logins > 24*4 {
				t.Errorf("%d logins in a day: a server forgets them after %s", w.logins, counted)
			}
		})
		right := filepath.Join(dir, "right")
		if err := os.WriteFile(right, []byte(s.secret), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(right, w.file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(retryMin)
		if err := w.ask(t.Context()); err != nil {
			t.Errorf("the right one: %v", err)
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
		for _, line := range []string{"it logs in again", "cannot log in"} {
			if n := strings.Count(log.String(), line); n != 1 {
				t.Errorf("%q stands %d times in the log:\n%s", line, n, log.String())
			}
		}
	})
}
