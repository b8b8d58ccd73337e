//go:build linux

package server_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server"
	"bivouac/server/api/apiv1"
	"bivouac/server/store/storetest/pgcluster"
)

// database starts a PostgreSQL of the test's own, or skips and says so.
func database(t *testing.T) *pgcluster.Cluster {
	t.Helper()
	c, err := pgcluster.New(t.Context())
	if errors.Is(err, pgcluster.ErrAbsent) {
		t.Skip("SKIPPED: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// notReady waits until the server says that it is not, and why.
func (w *world) notReady(words ...string) {
	w.t.Helper()
	var r readiness
	for range 200 {
		var status int
		if status, r = w.ready(); status == http.StatusServiceUnavailable && !r.Ready {
			missing := 0
			for _, word := range words {
				if !strings.Contains(r.String(), word) {
					missing++
				}
			}
			if missing == 0 {
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.t.Fatalf("it never says %q: %s", words, r)
}

func whoAmI(w *world) error {
	_, err := w.as(w.token).Principals.WhoAmI(w.t.Context(), &apiv1.WhoAmIRequest{})
	return protocol.FromConnect(err)
}

// A server whose PostgreSQL is away waits for it, says so to a prober and to a
// person, and is ready by itself when it is there; the same while it runs.
func TestServerWaitsForItsDatabase(t *testing.T) {
	c := database(t)
	w := prepare(t, func(cfg *server.Config) { cfg.Database = c.DSN() })
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	w.startBroker()
	w.startServer()
	w.startFeed()
	w.notReady("store", c.Host(), "start it")
	if err := whoAmI(w); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "waits for its database") {
		t.Errorf("a call meanwhile: %v", err)
	}
	res, err := w.httpClient(false).Get("http://public:7400/healthz")
	if err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("it is alive: %v", err)
	} else {
		res.Body.Close()
	}

	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.awaitReady()
	if err := whoAmI(w); err != nil {
		t.Errorf("a call afterwards: %v", err)
	}

	if err := c.Hang(); err != nil {
		t.Fatal(err)
	}
	w.notReady("store", "does not answer in time")
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	w.awaitReady()

	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	w.notReady("store", "PostgreSQL")
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.awaitReady()
	if err := whoAmI(w); err != nil {
		t.Errorf("a call in the end: %v", err)
	}
}

// A server that waits stops when it is told to, and refuses at once what waiting
// does not mend.
func TestServerThatWaitsCanBeStopped(t *testing.T) {
	c := database(t)
	w := prepare(t, func(cfg *server.Config) { cfg.Database = c.DSN() })
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	w.startServer()
	w.notReady("store")
	if err := w.stop(); err != nil {
		t.Errorf("stopped: %v", err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := w.config
	cfg.Database = strings.Replace(c.DSN(), "user=bivouac", "user=stranger", 1)
	cfg.PublicListener, cfg.RunnerListener = w.net.Listen(publicAddr), w.net.Listen(runnerAddr)
	s, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Run(ctx); protocol.CodeOf(err) != protocol.CodeFailedPrecondition || !strings.Contains(err.Error(), "stranger") {
		t.Errorf("a role that is not there: %v", err)
	}
}
