package jobs_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/finding"
	"bivouac/jobs"
)

// slow answers as another does, after a while; one that is longer than who asks waits.
type slow struct {
	to    http.RoundTripper
	after atomic.Int64 // a duration
}

func (s *slow) RoundTrip(q *http.Request) (*http.Response, error) {
	select {
	case <-time.After(time.Duration(s.after.Load())):
		return s.to.RoundTrip(q)
	case <-q.Context().Done():
		return nil, q.Context().Err()
	}
}

// A Nomad that is slow keeps nobody waiting for what is in memory; one that does not
// answer in time is as one that is away, and counts again when it does.
func TestSlowNomad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replayer{}
		r.replay(t, "ineligible")
		s := &slow{to: r}
		c := jobs.Config{Address: "https://nomad.example.org:4646", Token: "t", Rules: rules, Transport: s}
		w := jobs.NewWatch(c, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		defer func() { stop(); <-done }()
		says := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if n, _ := w.Standing(machineOf(r.node(t))); (want == "") != (n.Text == "") || !strings.Contains(n.Text, want) {
				t.Errorf("%s: %q, want %q", when, n.Text, want)
			}
		}
		says("at once", "ineligible")
		s.after.Store(int64(3 * time.Second))
		time.Sleep(time.Minute)
		says("slow", "ineligible")
		s.after.Store(int64(time.Hour))
		time.Sleep(10 * time.Minute)
		says("ten minutes without an answer", "")
		report := finding.From("server")
		asked := time.Now()
		c.Examine(t.Context(), report)
		if report.Worst() != finding.Problem || time.Since(asked) > 20*time.Second {
			t.Errorf("after %s: %+v", time.Since(asked), report.All)
		}
		s.after.Store(0)
		time.Sleep(time.Minute)
		says("and back", "ineligible")
	})
}
