package link_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
)

// word is a second proof for tests: whoever knows a word of its own says it, bound to the
// connection, and the other side knows the words that are good.
type word struct {
	mu      sync.Mutex
	mine    string
	good    map[string]time.Time // until when
	changed chan struct{}
	shown   atomic.Int64
}

func newWord(mine string, good ...string) *word {
	w := &word{mine: mine, good: map[string]time.Time{}, changed: make(chan struct{})}
	for _, g := range good {
		w.good[g] = time.Now().Add(time.Hour)
	}
	return w
}

func (w *word) set(mine string, good ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mine, w.good = mine, map[string]time.Time{}
	for _, g := range good {
		w.good[g] = time.Now().Add(time.Hour)
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func bound(b link.Binding, text string) string {
	sum := sha256.Sum256(append(b.Key[:], text...))
	side := map[bool]string{true: "dialler", false: "listener"}[b.Dialler]
	return side + " " + text + " " + string(sum[:])
}

func (w *word) Show(b link.Binding) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shown.Add(1)
	if w.mine == "" {
		return nil, protocol.Errorf(protocol.CodeUnavailable, "there is no word yet")
	}
	return []byte(bound(b, w.mine)), nil
}

func (w *word) Check(b link.Binding, shown []byte) (link.Vouched, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for text, until := range w.good {
		if string(shown) == bound(b, text) {
			return said{text, until, w}, nil
		}
	}
	if shown == nil {
		return nil, protocol.Errorf(protocol.CodeUnauthenticated, "no word was said")
	}
	return nil, protocol.Errorf(protocol.CodeUnauthenticated, "the word is not good")
}

func (w *word) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

type said struct {
	text  string
	until time.Time
	by    *word
}

func (s said) Name() string     { return s.text }
func (s said) Until() time.Time { return s.until }
func (s said) Holds() error {
	s.by.mu.Lock()
	defer s.by.mu.Unlock()
	if _, good := s.by.good[s.text]; !good {
		return protocol.Errorf(protocol.CodeUnavailable, "the word %s is good no more", s.text)
	}
	return nil
}

// vouching serves who calls, and what was proven beside the certificate.
func vouching(t *testing.T, f *fixture, w link.Vouch, from ...identity.Role) {
	t.Helper()
	listener, packets := listenBoth(t, "127.0.0.1:0")
	f.address = listener.Addr().String()
	s, err := link.NewServer(link.ServerConfig{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if v := link.VouchedFrom(r.Context()); v != nil && r.URL.Path == "/names" {
				said := "" // the names of the caller, as they come, while the request runs
				for said != "end" && r.Context().Err() == nil {
					if now := v.Name(); now != said {
						said = now
						_, _ = w.Write([]byte(said + " "))
						_ = http.NewResponseController(w).Flush()
					}
					time.Sleep(time.Millisecond)
				}
				return
			}
			if v := link.VouchedFrom(r.Context()); v != nil {
				w.Header().Set("Name", v.Name())
				_, _ = w.Write([]byte(v.Name()))
				return
			}
			if r.URL.Path != "/" {
				http.NotFound(w, r) // as a listener that knows no second proof
				return
			}
			whoCalls(w, r)
		}),
		Root: f.root.Certificate, Grace: 200 * time.Millisecond, Vouch: w, VouchFrom: from,
		Certificate: func() (*tls.Certificate, error) { return f.server.Load(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return s.Serve(ctx, packets, listener) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// onBoth runs a test over QUIC and over TCP.
func onBoth(t *testing.T, test func(t *testing.T, f *fixture, n link.Network, transport string)) {
	for _, transport := range []string{link.HTTP3, link.HTTP2} {
		t.Run(transport, func(t *testing.T) {
			f := newFixture(t)
			f.patient = transport == link.HTTP3
			var g gate
			g.shut.Store(transport == link.HTTP2)
			test(t, f, g.network(), transport)
		})
	}
}

// Both sides prove before anything else is sent, over either transport; who is not believed
// is refused, and so is one who says nothing. A role that need not prove is not asked.
func TestVouch(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture, n link.Network, transport string) {
		for name, tc := range map[string]struct {
			here, there *word
			says        string
		}{
			"both":                {newWord("a", "b"), newWord("b", "a"), ""},
			"the dialler lies":    {newWord("x", "b"), newWord("b", "a"), "the word is not good"},
			"the listener lies":   {newWord("a", "b"), newWord("x", "a"), "the word is not good"},
			"the dialler has one": {newWord("a", "b"), nil, "no word was said"},
			"the dialler has not": {newWord("", "b"), newWord("b", "a"), "there is no word yet"},
			"the listener has no": {newWord("a", "b"), newWord("", "a"), "there is no word yet"},
			"neither":             {nil, nil, ""},
			"nothing said":        {nil, newWord("b", "a"), "no word was said"},
		} {
			t.Run(name, func(t *testing.T) {
				if tc.there != nil {
					vouching(t, f, tc.there, identity.RoleRunner)
				} else {
					vouching(t, f, nil)
				}
				cfg := f.config()
				if cfg.Network = n; tc.here != nil {
					cfg.Vouch = tc.here
				}
				c, err := link.NewClient(cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				body, err := get(c, "/")
				said := body
				if err != nil {
					said = err.Error()
				}
				if tc.says == "" && (err != nil || c.Transport() != transport) || !strings.Contains(said, tc.says) {
					t.Errorf("%q over %s: want %q", said, c.Transport(), tc.says)
				}
				if tc.says == "" && tc.here != nil && body != "a" {
					t.Errorf("the handler learns of %q", body)
				}
			})
		}
		vouching(t, f, newWord("b", "a"), identity.RoleServer) // runners need not
		cfg := f.config()
		cfg.Network = n
		c := dial(t, cfg)
		if _, err := get(c, "/"); err != nil {
			t.Error(err)
		}
	})
}

// A proof that was taken down on one connection is worth nothing on another: it is bound to
// the first one's keys.
func TestVouchIsBound(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture, n link.Network, _ string) {
		vouching(t, f, newWord("b", "a"), identity.RoleRunner)
		thief := &replay{word: newWord("a", "b")}
		cfg := f.config()
		cfg.Network, cfg.Vouch = n, thief
		first, err := link.NewClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		if _, err := get(first, "/"); err != nil {
			t.Fatal(err)
		}
		second, err := link.NewClient(cfg) // shows what was right on the first
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		if _, err := get(second, "/"); err == nil || !strings.Contains(err.Error(), "the word is not good") {
			t.Errorf("a proof of another connection was taken: %v", err)
		}
	})
}

type replay struct {
	*word
	mu   sync.Mutex
	kept []byte
}

func (r *replay) Show(b link.Binding) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept == nil {
		var err error
		if r.kept, err = r.word.Show(b); err != nil {
			return nil, err
		}
	}
	return r.kept, nil
}

// Words change on both sides while requests run: each side shows the newest over the same
// connection, and no request fails. What is not believed any more is refused from then on,
// on the connection that is open too.
func TestVouchAnew(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture, n link.Network, transport string) {
		here, there := newWord("a1", "b1", "b2"), newWord("b1", "a1", "a2")
		vouching(t, f, there, identity.RoleRunner)
		cfg := f.config()
		cfg.Network, cfg.Vouch = n, here
		c := dial(t, cfg)
		ctx, stop := context.WithCancel(t.Context())
		var g errgroup.Group
		g.Go(func() error { return c.RunVouch(ctx) })
		var sent atomic.Int64
		g.Go(func() error {
			for ctx.Err() == nil {
				if _, err := getCtx(ctx, c, "/"); err != nil && ctx.Err() == nil {
					return err
				}
				sent.Add(1)
			}
			return nil
		})
		names := func(want string) {
			t.Helper()
			for range 1000 {
				if body, err := get(c, "/"); err == nil && body == want {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			t.Fatalf("the listener does not learn of %s", want)
		}
		names("a1")
		here.set("a2", "b1", "b2")
		names("a2")
		there.set("b2", "a2")
		here.set("a2", "b1", "b2") // this side asks again, too
		names("a2")
		here.set("a2", "b2")
		for before := sent.Load(); sent.Load() < before+20; {
			time.Sleep(time.Millisecond)
		}
		stop()
		if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("a request was lost after %d: %v", sent.Load(), err)
		}
		there.set("b2", "another")
		if _, err := get(c, "/"); err == nil || !strings.Contains(err.Error(), "good no more") && !strings.Contains(err.Error(), "not good") {
			t.Errorf("over the open connection: %v", err)
		}
		there.set("b2", "a2")
		names("a2")
		_ = transport
	})
}

// A request that runs learns of what its caller shows anew: the first proof may end, the
// request goes on with the next.
func TestVouchAnewOfARunningRequest(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture, n link.Network, _ string) {
		here := newWord("a1", "b")
		vouching(t, f, newWord("b", "a1", "a2", "end"), identity.RoleRunner)
		cfg := f.config()
		cfg.Network, cfg.Vouch = n, here
		c := dial(t, cfg)
		ctx, stop := context.WithCancel(t.Context())
		var g errgroup.Group
		g.Go(func() error { return c.RunVouch(ctx) })
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/names", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for _, name := range []string{"a1 ", "a2 ", "end "} {
			here.set(strings.TrimSpace(name), "b")
			got := make([]byte, len(name))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != name {
				t.Fatalf("%q, %v: want %q", got, err, name)
			}
		}
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
			t.Errorf("%q, %v", rest, err)
		}
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}
