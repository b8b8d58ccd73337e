package provider_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/edge/link/linktest"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/modeltest"
	"bivouac/server/broker/provider"
)

// scene is one way in which a call goes wrong.
type scene struct {
	handler http.HandlerFunc
	dial    func(ctx context.Context) (net.Conn, error) // instead of the server
	private bool                                        // the name has a private address, which the route does not allow
	cancel  time.Duration
	took    time.Duration
	code    protocol.Code
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// piece streams one delta and then does what then says.
func piece(then func(w http.ResponseWriter, r *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, sse(`{"choices":[{"delta":{"content":"hi"}}]}`))
		http.NewResponseController(w).Flush()
		then(w, r)
	}
}

func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func says(event string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, sse(event)) }
}

var errStopped = protocol.Errorf(protocol.CodePermissionDenied, "the grant was revoked")

// scenes has one for each row of the table.
var scenes = map[string]scene{
	"no connection":                  {dial: func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") }, code: protocol.CodeUnavailable},
	"an address that policy refuses": {private: true, code: protocol.CodePolicyDenied},
	"stopped before it left": {dial: func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() },
		cancel: time.Second, took: time.Second, code: protocol.CodePermissionDenied},
	"asked to slow down":        {handler: status(http.StatusTooManyRequests), code: protocol.CodeRateLimited},
	"a fault of the provider":   {handler: status(529), code: protocol.CodeUnavailable},
	"refused for good":          {handler: status(http.StatusBadRequest), code: protocol.CodeInvalidArgument},
	"broke off before a status": {handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, code: protocol.CodeUnavailable},
	"no answer in time":         {handler: silent, took: 10 * time.Minute, code: protocol.CodeUnavailable},
	"stopped while it waited":   {handler: silent, cancel: time.Second, took: time.Second, code: protocol.CodePermissionDenied},
	"stream ended early":        {handler: piece(func(http.ResponseWriter, *http.Request) {}), code: protocol.CodeUnavailable},
	"stream broke off":          {handler: piece(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), code: protocol.CodeUnavailable},
	// Ten minutes of an answer, a piece every ten seconds, and then nothing.
	"stream stood still": {handler: piece(func(w http.ResponseWriter, r *http.Request) {
		for range 60 {
			time.Sleep(10 * time.Second)
			fmt.Fprint(w, sse(`{"choices":[{"delta":{"content":"x"}}]}`))
			http.NewResponseController(w).Flush()
		}
		silent(w, r)
	}), took: 12 * time.Minute, code: protocol.CodeUnavailable},
	"a fault named instead of an answer": {handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, sse(`{"error":{"message":"overloaded"}}`))
	}, code: protocol.CodeUnavailable},
	"a fault named in the stream":   {handler: piece(says(`{"error":{"message":"overloaded"}}`)), code: protocol.CodeUnavailable},
	"an answer that cannot be read": {handler: piece(says(`<html>`)), code: protocol.CodeDataLoss},
	"an answer that is withheld":    {handler: piece(says(`{"choices":[{"delta":{},"finish_reason":"content_filter"}]}`)), code: protocol.CodePolicyDenied},
	"stopped while it streamed":     {handler: piece(silent), cancel: time.Second, took: time.Second, code: protocol.CodePermissionDenied},
}

func (s scene) play(t *testing.T) (*provider.Answer, error) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ln := linktest.NewListener()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		s.handler(w, r)
	})}
	served := make(chan struct{})
	go func() { server.Serve(ln); close(served) }()
	defer func() { server.Close(); <-served }()
	network := egress.Network{
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(map[bool]string{true: "10.0.0.1", false: "9.9.9.9"}[s.private])}, nil
		},
		Dial: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			if s.dial != nil {
				return s.dial(ctx)
			}
			return ln.Dial(ctx)
		},
	}
	base, err := url.Parse("http://provider.example/v1")
	if err != nil {
		t.Fatal(err)
	}
	client, err := egress.NewClient(egress.Config{Name: "model route r", Base: base, Network: network})
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	c, err := provider.New(provider.Config{Route: "r", Base: base, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	if s.cancel > 0 {
		defer time.AfterFunc(s.cancel, func() { cancel(errStopped) }).Stop()
	}
	req := &runtimev1.ModelRequest{Messages: []*runtimev1.Message{modeltest.User("x")}, MaxOutputTokens: 5}
	return c.Complete(ctx, provider.Call{Model: "m", Request: req}, func(string) error { return nil })
}

// Every row of the table happens, is recognised as itself and ends when it should.
func TestRules(t *testing.T) {
	for _, row := range provider.Rules {
		s, ok := scenes[row.What]
		if !ok {
			t.Errorf("no scene plays %q", row.What)
			continue
		}
		t.Run(row.What, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				a, err := s.play(t)
				var f *provider.Failure
				if a != nil || !errors.As(err, &f) {
					t.Fatalf("%v, %v", a, err)
				}
				if got := f.Rule(); got.What != row.What || protocol.CodeOf(err) != s.code {
					t.Errorf("it is taken for %q at stage %s, fault %s: %v", got.What, f.Stage, f.Fault, err)
				}
				if took := time.Since(begun); took != s.took {
					t.Errorf("it took %s, not %s", took, s.took)
				}
				if s.cancel > 0 && !errors.Is(err, errStopped) {
					t.Errorf("the cause is lost: %v", err)
				}
			})
		})
	}
	if len(scenes) != len(provider.Rules) {
		t.Errorf("%d scenes for %d rows", len(scenes), len(provider.Rules))
	}
	synctest.Test(t, func(t *testing.T) { // the positive twin
		a, err := scene{handler: piece(says(`{"choices":[{"delta":{"content":"!"},"finish_reason":"stop"}]}`))}.play(t)
		if err != nil || a.Message.GetBlocks()[0].GetText() != "hi!" {
			t.Errorf("a good stream: %v, %v", a, err)
		}
	})
}

// INV-19: what is tried again owes nothing, and brought no part of an answer; so
// one reservation covers every try, and nothing that streamed is replayed.
func TestOnlyWhatBroughtNothingIsRepeated(t *testing.T) {
	for _, r := range provider.Rules {
		if r.Again && (r.Owed != provider.Nothing || r.Stage == provider.Begun || r.Stage == provider.Sent) {
			t.Errorf("%q is repeated at stage %s and owes %s", r.What, r.Stage, r.Owed)
		}
		if r.Stage == provider.Begun && !r.Empty && r.Owed != provider.WhatCame {
			t.Errorf("%q began and owes %s", r.What, r.Owed)
		}
	}
	unforeseen := (&provider.Failure{Stage: provider.Begun, Fault: "new"}).Rule()
	if unforeseen.Again || unforeseen.Owed != provider.WhatCame {
		t.Errorf("unforeseen: %+v", unforeseen)
	}
	var again []int
	for code := 300; code < 600; code++ {
		if (&provider.Failure{Stage: provider.Refused, Fault: provider.Status, Status: code}).Rule().Again {
			again = append(again, code)
		}
	}
	if want := []int{408, 429, 500, 502, 503, 504, 529}; !slices.Equal(again, want) {
		t.Errorf("statuses that are repeated: %v", again)
	}
}

func TestPause(t *testing.T) {
	r := provider.Retry{Tries: 4, First: 100 * time.Millisecond, Most: 300 * time.Millisecond, Waits: 5 * time.Second}
	const ms = time.Millisecond
	busy := func(after time.Duration) *provider.Failure {
		e := protocol.Errorf(protocol.CodeRateLimited, "slow down")
		e.RetryAfter = after
		return &provider.Failure{Stage: provider.Refused, Fault: provider.Status, Status: 429, Err: e}
	}
	for name, tc := range map[string]struct {
		failure      *provider.Failure
		tries        int
		waited, left time.Duration
		jitter       float64
		want         time.Duration
		again        bool
	}{
		"first, least":           {busy(0), 1, 0, time.Hour, 0, 50 * ms, true},
		"first, most":            {busy(0), 1, 0, time.Hour, 1, 100 * ms, true},
		"second doubles":         {busy(0), 2, 0, time.Hour, 1, 200 * ms, true},
		"third is bounded":       {busy(0), 3, 0, time.Hour, 1, 300 * ms, true},
		"no fifth try":           {busy(0), 4, 0, time.Hour, 1, 0, false},
		"asked to wait":          {busy(2 * time.Second), 1, 0, time.Hour, 0, 2 * time.Second, true},
		"asked, with jitter":     {busy(2 * time.Second), 1, 0, time.Hour, 1, 2100 * ms, true},
		"asked for too long":     {busy(6 * time.Second), 1, 0, time.Hour, 0, 0, false},
		"waited long enough":     {busy(2 * time.Second), 2, 4 * time.Second, time.Hour, 0, 0, false},
		"the turn's end":         {busy(2 * time.Second), 1, 0, 2 * time.Second, 0, 0, false},
		"just before its end":    {busy(2 * time.Second), 1, 0, 2*time.Second + 1, 0, 2 * time.Second, true},
		"what is not repeated":   {&provider.Failure{Stage: provider.Begun, Fault: provider.EndedEarly, Err: busy(0).Err}, 1, 0, time.Hour, 0, 0, false},
		"what nobody thought of": {&provider.Failure{Stage: provider.Sent, Fault: "new", Err: busy(0).Err}, 1, 0, time.Hour, 0, 0, false},
	} {
		got, again := r.Pause(tc.failure, tc.tries, tc.waited, tc.left, tc.jitter)
		if got != tc.want || again != tc.again {
			t.Errorf("%s: %s, %v", name, got, again)
		}
	}
}
