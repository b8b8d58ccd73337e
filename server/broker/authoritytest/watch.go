package authoritytest

import (
	"context"
	"sync"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/authority"
)

// settleIn bounds how long an authority may take to learn what is true where grants
// are held. It is no promise about time: bench has those.
const settleIn = 30 * time.Second

const askAgain = 10 * time.Millisecond

// watched is an authority whose Run runs.
type watched struct {
	stop func()

	mu   sync.Mutex
	told []authority.Ended
}

// watch runs the authority until the test ends, or stop is called.
func watch(t *testing.T, a broker.Authority) *watched {
	t.Helper()
	w := &watched{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	over := make(chan error, 1)
	go func() {
		over <- a.Run(ctx, func(e authority.Ended) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = append(w.told, e)
		})
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

func (w *watched) of(id protocol.GrantID) (out []authority.Ended) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.told {
		if e.Grant == id {
			out = append(out, e)
		}
	}
	return out
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(settleIn); !is(); time.Sleep(askAgain) {
		if time.Now().After(end) {
			t.Fatalf("it never came that %s", what)
		}
	}
}

// settled is the first answer of Alive that says something: an authority that has
// just begun may know nothing yet.
func settled(t *testing.T, f Fixture, id protocol.GrantID) (err error) {
	t.Helper()
	until(t, "the authority knows its grants", func() bool {
		err = f.Alive(t.Context(), id)
		return protocol.CodeOf(err) != protocol.CodeUnavailable
	})
	return err
}

// endsAreTold: Run tells of the grants that ended before it began, and of no other.
func endsAreTold(t *testing.T, f Fixture) {
	alive, over := NewGrant("weather"), NewGrant("weather")
	create(t, f, alive)
	create(t, f, over)
	g, err := f.RevokeGrant(t.Context(), over.ID)
	if err != nil {
		t.Fatal(err)
	}
	f.reopen(t)
	until(t, "the end of before is told", func() bool { return len(f.watch.of(over.ID)) > 0 })
	if told := f.watch.of(over.ID); len(told) != 1 || !told[0].At.Equal(g.RevokedAt) || told[0].How == "" {
		t.Errorf("told %+v, revoked at %s", told, g.RevokedAt)
	}
	if err := settled(t, f, alive.ID); err != nil || len(f.watch.of(alive.ID)) != 0 {
		t.Errorf("the other: %v, told %+v", err, f.watch.of(alive.ID))
	}
	refused(t, "a grant that never was", settled(t, f, NewGrant().ID), protocol.CodePermissionDenied)
}

// revokedOutside: whoever ends a grant where it is held has ended it. INV-13.
func revokedOutside(t *testing.T, f Fixture) {
	if f.Revoke == nil {
		t.Skip("nobody but the broker can end a grant here")
	}
	g, other := NewGrant("weather"), NewGrant("weather")
	put(t, f, g.Tenant, "weather")
	put(t, f, other.Tenant, "weather")
	sealed, otherSealed := create(t, f, g), create(t, f, other)
	minted(t, f, Use(g, sealed, "weather"))
	if err := settled(t, f, g.ID); err != nil {
		t.Fatal(err)
	}
	f.Revoke(t, g)
	_, err := f.Mint(t.Context(), Use(g, sealed, "weather"))
	refused(t, "the first mint after it", err, protocol.CodePermissionDenied)
	until(t, "the end is told", func() bool { return len(f.watch.of(g.ID)) > 0 })
	err = f.Alive(t.Context(), g.ID)
	refused(t, "alive", err, protocol.CodePermissionDenied)
	if protocol.DetailOf(err) != protocol.DetailGrantEnded {
		t.Errorf("alive does not say that the grant ended: %v", err)
	}
	_, err = f.CreateGrant(t.Context(), g)
	refused(t, "the same grant again", err, protocol.CodeConflict)
	minted(t, f, Use(other, otherSealed, "weather"))
	if err := settled(t, f, other.ID); err != nil || len(f.watch.of(other.ID)) != 0 {
		t.Errorf("the other: %v, told %+v", err, f.watch.of(other.ID))
	}
	f.reopen(t)
	_, err = f.Mint(t.Context(), Use(g, sealed, "weather"))
	refused(t, "mint after a restart", err, protocol.CodePermissionDenied)
	until(t, "the end is told again", func() bool { return len(f.watch.of(g.ID)) > 0 })
	minted(t, f, Use(other, otherSealed, "weather"))
}
