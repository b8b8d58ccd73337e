package server

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// front is the public listener. It answers from the start on: until the database
// is there it says what is waited for, so that a prober, a load balancer and a
// person are told the same.
type front struct {
	public  publicServer
	handler atomic.Pointer[http.Handler]
	over    chan struct{} // closed by stop
	gone    chan struct{} // closed when the last call was answered
	once    sync.Once

	mu      sync.Mutex // guards missing
	missing error      // why there is no store yet
}

func newFront(c Config, listener net.Listener) (*front, error) {
	tls, err := loadTLS(c)
	if err != nil {
		return nil, err
	}
	f := &front{over: make(chan struct{}), gone: make(chan struct{})}
	f.public = publicServer{listener: listener, tls: tls, grace: c.Grace, log: c.Log, handler: f}
	f.answer(probes(http.HandlerFunc(f.refuse), f.waiting, nil))
	return f, nil
}

// answer takes another handler for the calls that come from now on.
func (f *front) answer(h http.Handler) { f.handler.Store(&h) }

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*f.handler.Load()).ServeHTTP(w, r)
}

// run serves until ctx ends or stop is called.
func (f *front) run(ctx context.Context) error {
	defer close(f.gone)
	g, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	g.Go(func() error {
		defer cancel()
		select {
		case <-ctx.Done():
		case <-f.over:
		}
		return nil
	})
	g.Go(func() error { return f.public.run(ctx) })
	return g.Wait()
}

// stop ends the listener and waits until running calls are answered or cut off.
func (f *front) stop() error {
	f.once.Do(func() { close(f.over) })
	<-f.gone
	return nil
}

func (f *front) lacks(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.missing = err
}

func (f *front) reason() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.missing != nil {
		return f.missing
	}
	return protocol.Errorf(protocol.CodeUnavailable, "the server is starting")
}

// waiting is the readiness of a server without a store.
func (f *front) waiting(context.Context) []check {
	return []check{{Name: "store", Problem: f.reason().Error()}}
}

// refuse answers every call with what is waited for.
func (f *front) refuse(w http.ResponseWriter, r *http.Request) {
	why := &protocol.Error{Code: protocol.CodeUnavailable, RetryAfter: time.Second, Message: "the server waits for its database: " + f.reason().Error()}
	if e := connect.NewErrorWriter(); e.IsSupported(r) {
		e.Write(w, r, protocol.ToConnect(why)) // the caller is gone
		return
	}
	http.Error(w, why.Error(), http.StatusServiceUnavailable)
}

// awaitStore opens the store. A PostgreSQL that is away, starts or is a standby is
// waited for; a refusal that only a person can mend is returned.
func awaitStore(ctx context.Context, c Config, f *front) (*store.Store, error) {
	back := link.Backoff{Base: 100 * time.Millisecond, Max: 2 * time.Second}
	for {
		st, err := openStore(ctx, c)
		if err == nil || protocol.CodeOf(err) != protocol.CodeUnavailable || c.Database == "" && c.DSNFile == "" {
			return st, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		f.lacks(err)
		c.Log.Warn("the database is waited for", "error", err)
		t := time.NewTimer(back.Next())
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, context.Cause(ctx)
		case <-t.C:
		}
	}
}
