package broker_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
	"bivouac/server/capability"
)

// outside is an authority at which an admin takes grants back without asking the
// broker.
type outside struct {
	*keyring.Keyring
	taken chan authority.Ended

	mu      sync.Mutex // guards below
	gone    map[protocol.GrantID]bool
	away    bool // it refuses a revoked grant, and cannot end it
	ended   []protocol.GrantID
	engines engines
}

func newOutside(k *keyring.Keyring) *outside {
	return &outside{Keyring: k, taken: make(chan authority.Ended), gone: map[protocol.GrantID]bool{}}
}

func (o *outside) take(id protocol.GrantID, how string) {
	o.mu.Lock()
	o.gone[id] = true
	o.mu.Unlock()
	o.taken <- authority.Ended{Grant: id, At: time.Now(), How: how}
}

func (o *outside) Alive(ctx context.Context, id protocol.GrantID) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone[id] {
		return authority.Revoked(id, "")
	}
	return o.Keyring.Alive(ctx, id)
}

func (o *outside) Mint(ctx context.Context, u authority.Use) (secret.Value, error) {
	if err := o.Alive(ctx, u.Grant); err != nil {
		return secret.Value{}, err
	}
	return o.Keyring.Mint(ctx, u)
}

func (o *outside) RevokeGrant(ctx context.Context, id protocol.GrantID) (authority.Grant, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone[id] = true
	if o.away {
		return authority.Grant{}, protocol.Errorf(protocol.CodeUnavailable, "the server of grants is sealed")
	}
	o.ended = append(o.ended, id)
	return o.Keyring.RevokeGrant(ctx, id)
}

func (o *outside) set(away bool) (ended []protocol.GrantID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away = away
	return slices.Clone(o.ended)
}

func (o *outside) Run(ctx context.Context, ended func(authority.Ended)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case g := <-o.taken:
			ended(g)
		}
	}
}

// reports are what the server was told. It settles those that it knows.
type reports struct {
	told    sync.Mutex // guards below
	all     []*brokerv1.EndedGrant
	unknown bool // the server does not have the grants yet
	broken  bool
}

func (r *reports) ReportEnded(_ context.Context, in *brokerv1.ReportEndedRequest) (*brokerv1.ReportEndedResponse, error) {
	r.told.Lock()
	defer r.told.Unlock()
	r.all = append(r.all, in.GetGrants()...)
	out := &brokerv1.ReportEndedResponse{}
	switch {
	case r.broken:
		return nil, protocol.Errorf(protocol.CodeUnavailable, "the store is away")
	case !r.unknown:
		for _, g := range in.GetGrants() {
			out.Settled = append(out.Settled, g.GetGrantId())
		}
	}
	return out, nil
}

func (r *reports) set(unknown, broken bool) {
	r.told.Lock()
	defer r.told.Unlock()
	r.unknown, r.broken = unknown, broken
}

// times that a grant was told.
func (r *reports) times(id protocol.GrantID) (n int) {
	r.told.Lock()
	defer r.told.Unlock()
	for _, g := range r.all {
		if g.GetGrantId() == id.String() {
			n++
		}
	}
	return n
}

// INV-13: a grant that ends where it is held ends flows at once, and the server is
// told until it has it as revoked; another grant's flows go on.
func TestEndedAtTheAuthority(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		other := w.grant
		other.ID = newID[protocol.GrantKind]()
		sealed, err := w.keys.CreateGrant(t.Context(), other)
		w.must(err)
		doomed := w.open(server, w.claims(nil))
		kept := w.open(server, w.claims(func(c *capability.Claims) { c.Grant, c.SealedGrant = other.ID, sealed }))

		w.feed.set(true, false)
		began := time.Now()
		w.outside.take(w.grant.ID, "its token was revoked")
		if err := <-doomed.done; protocol.CodeOf(err) != protocol.CodePermissionDenied || protocol.DetailOf(err) != protocol.DetailGrantEnded {
			t.Errorf("the flow ended with %v", err)
		}
		next, err := server.broker.CallModel(context.Background(), modelRequest(w.sign(w.claims(nil)), "main", "slowly"))
		w.must(err)
		if next.Receive() || protocol.DetailOf(protocol.FromConnect(next.Err())) != protocol.DetailGrantEnded {
			t.Errorf("the next flow is refused with %v", next.Err())
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the flow ended after %s", took)
		}
		time.Sleep(time.Second)
		if n := w.feed.times(w.grant.ID); n != 1 {
			t.Errorf("told %d times", n)
		}
		// A server that does not know the grant yet, or whose store is away, is told again.
		w.feed.set(false, true)
		time.Sleep(20 * time.Second)
		w.feed.set(false, false)
		time.Sleep(20 * time.Second)
		if n := w.feed.times(w.grant.ID); n != 3 {
			t.Errorf("told %d times", n)
		}
		time.Sleep(time.Minute)
		if n := w.feed.times(w.grant.ID); n != 3 {
			t.Errorf("what is settled is told again: %d times", n)
		}
		// Each new connection begins anew: that server may have lost it.
		w.feed.silence(true)
		time.Sleep(3 * time.Second)
		w.feed.silence(false)
		time.Sleep(10 * time.Second)
		if n := w.feed.times(w.grant.ID); n < 4 {
			t.Errorf("a new connection was not told: %d times", n)
		}
		if err := <-kept.done; err != nil {
			t.Errorf("a flow under another grant: %v", err)
		}
		if n := w.feed.times(other.ID); n != 0 {
			t.Errorf("a grant in force was told %d times", n)
		}
		w.feed.told.Lock()
		defer w.feed.told.Unlock()
		if !slices.ContainsFunc(w.feed.all, func(g *brokerv1.EndedGrant) bool {
			return g.GetHow() == "its token was revoked" && g.GetSeenUs() >= began.UnixMicro()
		}) {
			t.Errorf("%v", w.feed.all)
		}
	})
}

// INV-13, INV-18: a revocation that the authority cannot take is refused here at once,
// said to be open, and tried until it is taken.
func TestRevokedWhileTheAuthorityIsAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		doomed := w.open(server, w.claims(nil))
		w.outside.set(true)
		res, err := server.authority.RevokeGrant(t.Context(), &brokerv1.RevokeGrantRequest{GrantId: w.grant.ID.String()})
		if err != nil || res.GetFlowsZeroUs() == 0 || !strings.Contains(res.GetPending(), "sealed") {
			t.Fatalf("%v, %v", res, err)
		}
		if err := <-doomed.done; protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("the flow ended with %v", err)
		}
		open := func() bool {
			t.Helper()
			return slices.ContainsFunc(w.broker.Examine(t.Context()).All, func(f finding.Finding) bool { return f.Check == "revoked" })
		}
		time.Sleep(time.Second)
		if !open() {
			t.Error("nothing says that a revoked grant may live where it is held")
		}
		w.outside.set(false)
		time.Sleep(20 * time.Second)
		if ended := w.outside.set(false); !slices.Equal(ended, []protocol.GrantID{w.grant.ID}) || open() {
			t.Errorf("ended %v, still open %v", ended, open())
		}
	})
}

// INV-13: what a feed says was revoked is ended at the authority, so that a broker that
// starts anew forgets no revocation; what is in force is left alone.
func TestRevokedBeforeThisBrokerStarted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		other := w.grant
		other.ID = newID[protocol.GrantKind]()
		_, err := w.keys.CreateGrant(t.Context(), other)
		w.must(err)
		w.feed.raise(brokerv1.FloorKind_FLOOR_KIND_GRANT, w.grant.ID.String(), 1<<63-1)
		nowhere := newID[protocol.GrantKind]() // never held here
		w.feed.raise(brokerv1.FloorKind_FLOOR_KIND_GRANT, nowhere.String(), 1<<63-1)
		time.Sleep(time.Second)
		if ended := w.outside.set(false); !slices.Contains(ended, w.grant.ID) || slices.Contains(ended, other.ID) {
			t.Errorf("ended %v", ended)
		}
		if err := w.keys.Alive(t.Context(), w.grant.ID); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("at the authority: %v", err)
		}
		if err := w.keys.Alive(t.Context(), other.ID); err != nil {
			t.Errorf("one in force: %v", err)
		}
		// The server, whose receipt may not show it, is told that it is taken; of what was
		// never held here there is nothing to tell.
		time.Sleep(time.Second)
		if w.feed.times(w.grant.ID) == 0 || w.feed.times(other.ID) != 0 || w.feed.times(nowhere) != 0 {
			t.Errorf("told %v", w.feed.all)
		}
	})
}
