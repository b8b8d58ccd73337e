package runnerapi

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// Two servers of one store each name the keys of both, as soon as they are
// certified, and no longer than they last.
func TestStatementsOfAllServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "db")})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, stop := context.WithCancel(t.Context())
		gone := make(chan error, 2)
		begin := func(r protocol.ReplicaID, jws string, life time.Duration) (*Shared, *words) {
			ends := time.Now().Add(life)
			own := &words{changed: make(chan struct{}), now: []string{jws}}
			sh := Share(SharedConfig{Store: s, Own: own, Replica: r, Log: slog.New(slog.DiscardHandler),
				EndsAt: func(string) (time.Time, error) { return ends, nil }})
			go func() { gone <- sh.Run(ctx) }()
			return sh, own
		}
		a, _ := begin("rep_01jdv3k8x0q6v9w2m4t7y5z1ab", "a", time.Hour)
		b, own := begin("rep_01jdv3k8x0q6v9w2m4t7y5z1ac", "b", 10*time.Minute)
		names := func(sh *Shared, want ...string) {
			t.Helper()
			time.Sleep(2 * sharePoll)
			synctest.Wait()
			got, _ := sh.Statements()
			if !slices.Equal(got, want) {
				t.Errorf("it names %v, want %v", got, want)
			}
		}
		names(a, "a", "b")
		names(b, "b", "a")
		_, changed := a.Statements()
		own.say("c", "b")
		select {
		case <-changed:
		case <-time.After(10 * sharePoll):
			t.Error("a listener of the other server is not told")
		}
		if got, _ := a.Statements(); !slices.Contains(got, "c") {
			t.Errorf("a new key of the other server is not named: %v", got)
		}
		time.Sleep(11 * time.Minute)
		names(a, "a")
		a.Delivered([]string{"a"})
		stop()
		for range 2 {
			if err := <-gone; err != nil {
				t.Error(err)
			}
		}
	})
}
