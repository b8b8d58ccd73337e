package server

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"bivouac/server/brokerlink"
	"bivouac/server/engine"
	"bivouac/server/store"
)

// Bounds of readiness.
const (
	readyTimeout = 2 * time.Second
	// readyCache is how long one answer serves: probes must not cost commits.
	readyCache = 500 * time.Millisecond
	// maxFeedAge is the age at which a broker stops admitting.
	maxFeedAge = 2 * time.Second
)

// readiness answers whether a turn could really be taken now.
type readiness struct {
	store  *store.Store
	broker *brokerlink.Link
	engine *engine.Engine

	mu     sync.Mutex // guards below; held over one round of checks on purpose
	at     time.Time
	answer []check
}

// check is one thing that a turn needs.
type check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Problem says what is missing, for people.
	Problem string `json:"problem,omitempty"`
}

// checks runs all of them at once; the first stands for the others too.
func (r *readiness) checks(ctx context.Context) []check {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answer != nil && time.Since(r.at) < readyCache {
		return r.answer
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tests := []struct {
		name string
		run  func(context.Context) error
	}{
		{"store", r.store.Probe},
		{"broker", r.brokerReached},
		{"signing key", r.keyCertified},
		{"engine", r.engine.Ready},
	}
	out := make([]check, len(tests))
	var wg sync.WaitGroup
	for i, t := range tests {
		wg.Go(func() {
			err := t.run(ctx)
			out[i] = check{Name: t.name, OK: err == nil}
			if err != nil {
				out[i].Problem = err.Error()
			}
		})
	}
	wg.Wait()
	if ctx.Err() == nil {
		r.at, r.answer = time.Now(), out
	}
	return out
}

// brokerReached asks the broker itself, and how old its feed is: a broker that
// does not consume the feed admits nothing.
func (r *readiness) brokerReached(ctx context.Context) error {
	d, err := r.broker.Describe(ctx)
	if err != nil {
		return err
	}
	age := time.Duration(d.GetFeedAgeMs()) * time.Millisecond
	switch {
	case d.GetFeedAgeMs() < 0:
		return unready("the broker has not received this server's feed yet: check that it can reach the runner listener")
	case age > maxFeedAge:
		return unready("the broker's feed is " + age.Round(100*time.Millisecond).String() + " old: check that it can reach the runner listener")
	}
	return nil
}

func (r *readiness) keyCertified(context.Context) error {
	if r.broker.Certified() {
		return nil
	}
	return unready("the broker has not certified a signing key yet")
}

type unready string

func (u unready) Error() string { return string(u) }

// probes are the two paths for supervisors, beside the API.
func probes(next http.Handler, checks func(context.Context) []check, stopping <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("alive\n")) // the prober is gone
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		answer := struct {
			Ready  bool    `json:"ready"`
			Checks []check `json:"checks"`
		}{Ready: true, Checks: checks(req.Context())}
		select {
		case <-stopping: // nil: there is nothing to stop yet
			answer.Checks = append([]check{{Name: "running", Problem: "the server is stopping"}}, answer.Checks...)
		default:
		}
		for _, c := range answer.Checks {
			answer.Ready = answer.Ready && c.OK
		}
		w.Header().Set("Content-Type", "application/json")
		if !answer.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		json.NewEncoder(w).Encode(answer) // the prober is gone
	})
	mux.Handle("/", next)
	return mux
}
