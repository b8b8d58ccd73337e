package broker_test

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/budget"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// fronts answer requests with a fault and remember when each came.
type fronts struct {
	mu sync.Mutex
	at []time.Time
}

func (f *fronts) fault(code int, retryAfter string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.at = append(f.at, time.Now())
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.WriteHeader(code)
	}
}

func (f *fronts) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.at)
}

// drawn from a slice so far.
func (w *world) drawn(p peer, c capability.Claims) int64 {
	w.t.Helper()
	u, err := p.broker.Usage(w.t.Context(), &brokerv1.UsageRequest{SliceIds: []string{c.Slice.String()}})
	w.must(err)
	return u.GetSlices()[0].GetDrawnMicroUsd()
}

// Routes of every format: the key in the header that the route names, and what is
// cached at its own price.
func TestFormats(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		for route, want := range map[string]struct {
			path, header string
			cost         int64
		}{
			"main":      {"/v1/chat/completions", "Authorization", 3000 + 100},
			"claude":    {"/v1/messages", "x-api-key", 100*3 + 600*1 + 300*5 + 100},
			"responses": {"/v1/responses", "x-api-key", 3000 + 100},
		} {
			before := len(w.scripted.Received())
			text, done, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), route, "cached"))
			if err != nil || text != "Hello again." || done.GetUsage().GetInputTokens() != 1000 || done.GetUsage().GetCacheReadTokens() != 600 {
				t.Errorf("%s: %q %v %v", route, text, done, err)
			}
			if got := done.GetUsage().GetCostMicroUsd(); got != want.cost {
				t.Errorf("%s costs %d, not %d", route, got, want.cost)
			}
			if got := w.scripted.Received(); len(got) != before+1 || got[before].Path != want.path || got[before].KeyHeader != want.header {
				t.Errorf("%s: %+v", route, got[before:])
			}
		}
	})
}

// Before the first byte the broker tries again by itself; the answer is paid once.
func TestTriedAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		f := &fronts{}
		w.next(f.fault(503, ""), f.fault(429, "2"))
		c := w.claims(nil)
		text, _, err := call(t.Context(), server, modelRequest(w.sign(c), "main", "hello"))
		if err != nil || text != "Hello, you." || f.count() != 2 || len(w.scripted.Received()) != 1 {
			t.Fatalf("%q after %d faults: %v", text, f.count(), err)
		}
		first, second := f.at[1].Sub(f.at[0]), w.scripted.Received()[0].At.Sub(f.at[1])
		if first < 100*time.Millisecond || first > 500*time.Millisecond || second < 2*time.Second || second > 3*time.Second {
			t.Errorf("pauses of %s and %s", first, second)
		}
		if got := w.drawn(server, c); got != 400 {
			t.Errorf("%d was drawn", got)
		}
	})
}

// It gives up after three tries, before the turn's end, and where the provider asks
// for more patience than it has; nothing is owed then.
func TestGivesUp(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		for name, tc := range map[string]struct {
			after  string
			change func(*capability.Claims)
			tries  int
		}{
			"three tries":      {tries: 3},
			"too long to wait": {after: "60", tries: 1},
			"the turn's end":   {after: "5", change: func(c *capability.Claims) { c.Deadline = time.Now().Add(3 * time.Second) }, tries: 1},
			"just in time":     {after: "2", change: func(c *capability.Claims) { c.Deadline = time.Now().Add(4 * time.Second) }, tries: 2},
		} {
			f := &fronts{}
			w.next(f.fault(503, tc.after), f.fault(503, tc.after), f.fault(503, tc.after), f.fault(503, tc.after))
			c := w.claims(tc.change)
			_, _, err := call(t.Context(), server, modelRequest(w.sign(c), "main", "hello"))
			if protocol.CodeOf(err) != protocol.CodeUnavailable || f.count() != tc.tries {
				t.Errorf("%s: %d tries, %v", name, f.count(), err)
			}
			if got := w.drawn(server, c); got != 0 {
				t.Errorf("%s: %d was drawn", name, got)
			}
		}
		w.next()
	})
}

// INV-13: authority is asked again before each try.
func TestRevokedBetweenTries(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		f := &fronts{}
		w.next(f.fault(429, "5"))
		c := w.claims(nil)
		done := make(chan error, 1)
		go func() {
			_, _, err := call(context.Background(), server, modelRequest(w.sign(c), "main", "hello"))
			done <- err
		}()
		time.Sleep(time.Second)
		w.feed.raise(brokerv1.FloorKind_FLOOR_KIND_SESSION, c.Session.String(), 1<<63-1)
		if err := <-done; protocol.CodeOf(err) != protocol.CodePermissionDenied || f.count() != 1 || len(w.scripted.Received()) != 0 {
			t.Errorf("%d requests and %d answers after the revocation: %v", f.count(), len(w.scripted.Received()), err)
		}
		// Another session is not concerned.
		if _, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), "main", "hello")); err != nil {
			t.Error(err)
		}
	})
}

// Half a stream is a failure with a name. It is not replayed, it is paid for, and
// the loop may ask anew as long as the budget lasts. INV-19.
func TestHalfStream(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		for route, prompt := range map[string]string{"main": "half", "responses": "half", "claude": "stall"} {
			c := w.claims(nil)
			before, begun := len(w.scripted.Received()), time.Now()
			text, _, err := call(t.Context(), server, modelRequest(w.sign(c), route, prompt))
			got := w.scripted.Received()[before:]
			if protocol.CodeOf(err) != protocol.CodeUnavailable || text != "this is not " || len(got) != 1 {
				t.Errorf("%s: %q, %d requests, %v", route, text, len(got), err)
			}
			if took := time.Since(begun); prompt == "stall" && (took < 30*time.Second || took > 31*time.Second) {
				t.Errorf("%s: it stood still for %s", route, took)
			}
			// The input at 3 and the part that came at 10 dollars a million tokens.
			input, output := budget.Estimate(len(got[0].Body)), budget.Estimate(len(text))
			most := input*3 + output*10
			if route == "claude" { // it counted its input before it stood still
				most = int64(len(got[0].Body)/4+1)*3 + output*10
			}
			if drawn := w.drawn(server, c); drawn != most {
				t.Errorf("%s: %d was drawn, not %d", route, drawn, most)
			}
			if _, _, err := call(t.Context(), server, modelRequest(w.sign(c), route, "hello")); err != nil {
				t.Errorf("%s: asked anew: %v", route, err)
			}
		}
		// Once the slice is dry there is no further try.
		c := w.claims(func(c *capability.Claims) { c.SliceCeiling = 3000 })
		var err error
		for tries := 0; protocol.CodeOf(err) != protocol.CodeBudgetExhausted; tries++ {
			if tries > 20 {
				t.Fatalf("half answers are free: %v", err)
			}
			c.ID, c.IssuedAt, c.ExpiresAt = newID[protocol.CapabilityKind](), time.Now(), time.Now().Add(time.Minute)
			_, _, err = call(t.Context(), server, modelRequest(w.sign(c), "main", "half"))
		}
		if got := w.drawn(server, c); got > 3000 {
			t.Errorf("%d of 3000 was drawn", got)
		}
	})
}
