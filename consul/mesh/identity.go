package mesh

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/consul/client"
	"bivouac/consul/settings"
	"bivouac/edge/op"
	"bivouac/edge/protocol"
)

// Source answers about leaf and roots; *client.Client does.
type Source interface {
	Held(ctx context.Context, path string, index uint64, wait time.Duration, out any) (client.Answer, error)
}

const (
	rootsPath = "agent/connect/ca/roots"
	leafPath  = "agent/connect/ca/leaf/"
	// held is how long a question is held: an agent that hangs is noticed after it.
	held = time.Minute
	// apart are two questions about the same at least, and most after failures.
	apart, most = 100 * time.Millisecond, 5 * time.Second
)

// Params of an Identity.
type Params struct {
	Source Source
	// Service of this process, and Peer of the other one.
	Service, Peer string
	Of, PeerOf    settings.Of
	// Datacenters whose services are believed; none: that of the own leaf.
	Datacenters []string
	Now         func() time.Time // default time.Now
	Log         *slog.Logger
}

// ParamsOf a block with service and mesh.
func ParamsOf(of settings.Of, c settings.Config, asked Source, log *slog.Logger) Params {
	return Params{
		Source: asked, Service: c.Service.Name, Peer: c.Service.Peer, Of: of, PeerOf: settings.Other(of),
		Datacenters: c.Mesh.Datacenters, Log: log,
	}
}

// Identity of this process in Consul's mesh. It is safe for concurrent use.
type Identity struct {
	p     Params
	leaf  watched[leaf]
	roots watched[roots]

	mu      sync.Mutex // guards below
	changed chan struct{}
}

// watched is the newest that Consul said of something.
type watched[T any] struct {
	known atomic.Pointer[T]
	fault atomic.Pointer[error] // of the newest question; nil: it was answered
}

// reason why a newer one is not known.
func (w *watched[T]) reason() error {
	if err := w.fault.Load(); err != nil {
		return *err
	}
	return nil
}

// faulty is either of them.
type faulty interface{ reason() error }

// New asks nothing: Run does.
func New(p Params) *Identity {
	if p.Now == nil {
		p.Now = time.Now
	}
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	return &Identity{p: p, changed: make(chan struct{})}
}

// Run watches leaf and roots until ctx ends. A Consul that is away is no error: it is asked
// again.
func (i *Identity) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return follow(ctx, i, "roots of Consul's mesh", rootsPath, &i.roots, i.learnRoots) })
	g.Go(func() error {
		return follow(ctx, i, "leaf of "+i.p.Service, leafPath+i.p.Service, &i.leaf, i.learnLeaf)
	})
	return g.Wait()
}

// Changed is closed once there is another leaf, or are other roots.
func (i *Identity) Changed() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.changed
}

func (i *Identity) change() {
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.changed)
	i.changed = make(chan struct{})
}

// learnLeaf takes an answer in.
func (i *Identity) learnLeaf(body []byte) error {
	next, err := leafOf(body, i.p.Service, i.p.Now())
	if err != nil {
		return err
	}
	old := i.leaf.known.Load()
	if next.same(old) {
		return nil
	}
	i.leaf.known.Store(next)
	i.p.Log.Info("a leaf of Consul's mesh", "id", next.id, "ends", next.cert.NotAfter, "first", old == nil)
	i.change()
	return nil
}

func (i *Identity) learnRoots(body []byte) error {
	old := i.roots.known.Load()
	if old != nil && bytes.Equal(old.body, body) {
		return nil
	}
	next, err := rootsOf(body)
	if err != nil {
		return err
	}
	i.roots.known.Store(next)
	i.p.Log.Info("the roots of Consul's mesh", "trust_domain", next.trustDomain, "roots", next.names)
	i.change()
	return nil
}

// follow one of the two by held questions.
func follow[T any](ctx context.Context, i *Identity, what, path string, w *watched[T], learn func([]byte) error) error {
	var index uint64
	for failed := 0; ctx.Err() == nil; {
		begun := time.Now()
		a, err := i.p.Source.Held(ctx, path, index, held, new(any))
		if err == nil {
			if err = learn(a.Body); err != nil {
				err = protocol.Errorf(protocol.CodeUnavailable, "Consul's answer about the %s: %w", what, err)
			}
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			if w.fault.Swap(&err) == nil {
				i.p.Log.Error("Consul does not say the "+what+"; what is known counts until it ends", "error", err, "mend", client.Mend(err))
			}
			failed, index = failed+1, 0
			wait := min(apart<<min(failed, 10), most)
			op.Sleep(ctx, wait/2+rand.N(wait/2))
			continue
		}
		if w.fault.Swap(nil) != nil {
			i.p.Log.Info("Consul says the " + what + " again")
		}
		failed = 0
		if a.Index < index { // another history
			a.Index = 0
		}
		wait := apart
		if index = a.Index; index == 0 {
			wait = most // it is not held
		}
		if early := wait - time.Since(begun); early > 0 {
			op.Sleep(ctx, early)
		}
	}
	return nil
}

// lacks is an error about what Consul has not said, with the reason.
func (i *Identity) lacks(w faulty, format string, args ...any) error {
	err := protocol.Errorf(protocol.CodeUnavailable, format, args...)
	if why := w.reason(); why != nil {
		mend := client.Mend(why)
		if mend != "" {
			mend = "; " + mend
		}
		err = protocol.Errorf(protocol.CodeUnavailable, format+": %w%s", append(args, why, mend)...)
	}
	err.RetryAfter = time.Second
	return err
}

// Ready says what is missing to prove and to believe.
func (i *Identity) Ready() error {
	l := i.leaf.known.Load()
	switch {
	case l == nil:
		return i.lacks(&i.leaf, "Consul has given no mesh identity to %s yet", i.p.Service)
	case !i.p.Now().Before(l.cert.NotAfter):
		return i.lacks(&i.leaf, "the mesh identity of %s ended at %s", i.p.Service, stamp(l.cert.NotAfter))
	case i.roots.known.Load() == nil:
		return i.lacks(&i.roots, "Consul has not said yet which roots of its mesh count")
	}
	return nil
}

// Leaf is the serial number of the leaf that is shown now; empty: there is none.
func (i *Identity) Leaf() string {
	if l := i.leaf.known.Load(); l != nil {
		return l.cert.SerialNumber.String()
	}
	return ""
}
