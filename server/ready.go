package server

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"bivouac/consul/mesh"
	"bivouac/server/brokerlink"
	"bivouac/server/engine"
	"bivouac/server/store"
)

// Bounds of readiness.
const (
	readyTimeout = 2 * time.Second
	// readyCache is how long what was found well serves: probes must not cost commits.
	// What was missing is looked for again with every probe, so that who waits for
	// readiness learns of it when it comes.
	readyCache = 500 * time.Millisecond
	// maxFeedAge is the age at which a broker stops admitting.
	maxFeedAge = 2 * time.Second
)

// readiness answers whether a turn could really be taken now.
type readiness struct {
	store  *store.Store
	broker *brokerlink.Link
	engine *engine.Engine
	mesh   *mesh.Identity // nil: none is asked for

	mu   sync.Mutex // guards below; held over one round of checks on purpose
	well map[string]time.Time
}

// check is one thing that a turn needs.
type check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Problem says what is missing, for people.
	Problem string `json:"problem,omitempty"`
}

// probe is how one check is made.
type probe struct {
	name string
	run  func(context.Context) error
}

// checks makes all of them at once.
func (r *readiness) checks(ctx context.Context) []check {
	all := []probe{
		{"store", r.store.Probe},
		{"broker", r.brokerReached},
		{"signing key", r.keyCertified},
		{"engine", r.engine.Ready},
	}
	if r.mesh != nil {
		all = append(all, probe{"mesh identity", func(context.Context) error { return r.mesh.Ready() }})
	}
	return r.round(ctx, all)
}

// round makes the checks that were not found well a moment ago.
func (r *readiness) round(ctx context.Context, probes []probe) []check {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	begun, out := time.Now(), make([]check, len(probes))
	var wg sync.WaitGroup
	for i, p := range probes {
		if out[i] = (check{Name: p.name, OK: true}); begun.Sub(r.well[p.name]) < readyCache {
			continue
		}
		delete(r.well, p.name)
		wg.Go(func() {
			if err := p.run(ctx); err != nil {
				out[i].OK, out[i].Problem = false, err.Error()
			}
		})
	}
	wg.Wait()
	if r.well == nil {
		r.well = map[string]time.Time{}
	}
	for _, c := range out {
		if _, kept := r.well[c.Name]; c.OK && !kept {
			r.well[c.Name] = begun
		}
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
