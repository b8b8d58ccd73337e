package broker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/consul"
	"bivouac/consul/consultest"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// A model call streams, is priced and drawn from its slice.
func TestModelCall(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		c := w.claims(nil)
		text, done, err := call(t.Context(), server, modelRequest(w.sign(c), "main", "hello"))
		if err != nil {
			t.Fatal(err)
		}
		// 100 × 3 + 10 × 10 dollars a million tokens.
		if text != "Hello, you." || done.GetUsage().GetInputTokens() != 100 || done.GetUsage().GetOutputTokens() != 10 || done.GetUsage().GetCostMicroUsd() != 400 {
			t.Errorf("%q %v", text, done)
		}
		usage, err := server.broker.Usage(t.Context(), &brokerv1.UsageRequest{SliceIds: []string{c.Slice.String()}})
		if err != nil {
			t.Fatal(err)
		}
		if u := usage.GetSlices()[0]; u.GetDrawnMicroUsd() != 400 || u.GetInputTokens() != 100 || u.GetOpenFlows() != 0 || usage.GetBootNonce() != w.broker.BootNonce() {
			t.Errorf("%v", usage)
		}
		got := w.scripted.Received()
		if len(got) != 1 || !got[0].Authorization || !strings.Contains(string(got[0].Body), `"max_tokens":200`) {
			t.Errorf("the provider received %s", got[0].Body)
		}
		// A runner presents its own key.
		runner := w.as(w.runnerCert)
		token := w.sign(w.claims(func(c *capability.Claims) {
			c.Presenter, c.Attempt = thumbprint(w.runnerCert), newID[protocol.AttemptKind]()
		}))
		if text, _, err := call(t.Context(), runner, modelRequest(token, "main", "hello")); err != nil || text != "Hello, you." {
			t.Errorf("runner: %q %v", text, err)
		}
		if _, _, err := call(t.Context(), server, modelRequest(token, "main", "hello")); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("the runner's capability in the server's hands: %v", err)
		}
	})
}

// Nothing is held back: each piece arrives when the provider sends it.
func TestDeltasAreNotHeldBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		begun := time.Now()
		s, err := w.as(w.serverCert).broker.CallModel(t.Context(), modelRequest(w.sign(w.claims(nil)), "main", "slowly"))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for i := range 4 {
			if !s.Receive() {
				t.Fatal(s.Err())
			}
			if late := time.Since(begun) - time.Duration(i)*20*time.Second; late > time.Second || s.Msg().GetEvent().GetTextDelta() == "" {
				t.Errorf("piece %d came %s late", i, late)
			}
		}
	})
}

// INV-17: a provider that repeats the key does not get it through.
func TestProviderCannotEchoTheKey(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		text, done, err := call(t.Context(), w.as(w.serverCert), modelRequest(w.sign(w.claims(nil)), "main", "echo"))
		if err != nil || text != "the key is [redacted]" || strings.Contains(done.String(), modelKey) {
			t.Errorf("%q %v", text, err)
		}
	})
}

// Every check of admission refuses, with its code, and the same call without the
// change is admitted.
func TestAdmission(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		floor := func(kind brokerv1.FloorKind, id string, minimum int64) {
			w.feed.raise(kind, id, minimum)
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
		}
		const none = 1<<63 - 1
		other := newID[protocol.GrantKind]()
		for name, tc := range map[string]struct {
			change func(*capability.Claims)
			route  string
			prompt string
			after  func(capability.Claims)
			want   protocol.Code
		}{
			"audience":         {change: func(c *capability.Claims) { c.Audience = "other" }, want: protocol.CodePermissionDenied},
			"presenter":        {change: func(c *capability.Claims) { c.Presenter = thumbprint(w.runnerCert) }, want: protocol.CodePermissionDenied},
			"expired":          {change: func(c *capability.Claims) { c.IssuedAt, c.ExpiresAt = time.Now().Add(-time.Minute), time.Now() }, want: protocol.CodePermissionDenied},
			"deadline":         {change: func(c *capability.Claims) { c.Deadline = time.Now().Add(-time.Second) }, want: protocol.CodeDeadlineExceeded},
			"model not named":  {change: func(c *capability.Claims) { c.Models = []string{"public"} }, want: protocol.CodePermissionDenied},
			"action only":      {change: func(c *capability.Claims) { c.Models = nil }, want: protocol.CodePermissionDenied},
			"boundary":         {change: func(c *capability.Claims) { c.DataBoundary = "secret" }, want: protocol.CodePolicyDenied},
			"path of agent":    {change: func(c *capability.Claims) { c.Agent = "coder" }, want: protocol.CodePolicyDenied},
			"path of tenant":   {change: func(c *capability.Claims) { c.TenantName = "stranger" }, want: protocol.CodePolicyDenied},
			"cap of tenant":    {change: func(c *capability.Claims) { c.TenantName = "capped" }, want: protocol.CodePolicyDenied},
			"unknown grant":    {change: func(c *capability.Claims) { c.Grant = other }, want: protocol.CodePermissionDenied},
			"no slice":         {change: func(c *capability.Claims) { c.Slice = "" }, want: protocol.CodeBudgetExhausted},
			"slice, old boot":  {change: func(c *capability.Claims) { c.SliceBoot = "earlier" }, want: protocol.CodeUnavailable},
			"slice too small":  {change: func(c *capability.Claims) { c.SliceCeiling = 500 }, want: protocol.CodeBudgetExhausted},
			"broker's own cap": {change: func(c *capability.Claims) { c.TenantName = "poor" }, want: protocol.CodeRateLimited},
			"unknown route":    {route: "nowhere", change: func(c *capability.Claims) { c.Models = []string{"nowhere"} }, want: protocol.CodeNotFound},
			"no price":         {route: "unpriced", want: protocol.CodeFailedPrecondition},
			"private address":  {route: "public", want: protocol.CodePolicyDenied},
			"provider says no": {prompt: "429", want: protocol.CodeRateLimited},
			"session floor":    {after: func(c capability.Claims) { floor(brokerv1.FloorKind_FLOOR_KIND_SESSION, c.Session.String(), none) }, want: protocol.CodePermissionDenied},
			"principal floor": {change: func(c *capability.Claims) { c.Grant, c.Principal = "", newID[protocol.PrincipalKind]() },
				after: func(c capability.Claims) {
					floor(brokerv1.FloorKind_FLOOR_KIND_PRINCIPAL, c.Principal.String(), none)
				}, want: protocol.CodePermissionDenied},
			"generation floor": {after: func(c capability.Claims) {
				floor(brokerv1.FloorKind_FLOOR_KIND_INSTANCE, c.Instance.String(), c.Generation+1)
			}, want: protocol.CodePermissionDenied}, // INV-16
			"generation at its floor": {after: func(c capability.Claims) {
				floor(brokerv1.FloorKind_FLOOR_KIND_INSTANCE, c.Instance.String(), c.Generation)
			}, want: ""},
			"turn fence": {after: func(c capability.Claims) {
				floor(brokerv1.FloorKind_FLOOR_KIND_TURN, c.Turn.String(), int64(c.Fence)+1)
			}, want: protocol.CodeStaleFence}, // INV-3
			"turn fence at its floor": {after: func(c capability.Claims) {
				floor(brokerv1.FloorKind_FLOOR_KIND_TURN, c.Turn.String(), int64(c.Fence))
			}, want: ""},
			"attempt fence": {change: func(c *capability.Claims) { c.Attempt = newID[protocol.AttemptKind]() }, after: func(c capability.Claims) {
				floor(brokerv1.FloorKind_FLOOR_KIND_ATTEMPT, c.Attempt.String(), int64(c.Fence)+1)
			}, want: protocol.CodeStaleFence},
			"attempt, turn ended": {change: func(c *capability.Claims) { c.Attempt = newID[protocol.AttemptKind]() }, after: func(c capability.Claims) {
				floor(brokerv1.FloorKind_FLOOR_KIND_TURN, c.Turn.String(), none)
			}, want: protocol.CodeStaleFence},
			"nothing wrong": {want: ""},
		} {
			if tc.route == "" {
				tc.route = "main"
			}
			if tc.prompt == "" {
				tc.prompt = "hello"
			}
			c := w.claims(tc.change)
			token := w.sign(c)
			if tc.after != nil {
				if _, _, err := call(t.Context(), server, modelRequest(token, tc.route, tc.prompt)); err != nil {
					t.Errorf("%s: refused before: %v", name, err)
				}
				tc.after(c)
			}
			_, _, err := call(t.Context(), server, modelRequest(token, tc.route, tc.prompt))
			if protocol.CodeOf(err) != tc.want {
				t.Errorf("%s: %v, want %q", name, err, tc.want)
			}
			var coded *protocol.Error
			if name == "provider says no" && (!errors.As(err, &coded) || coded.RetryAfter != 7*time.Second) {
				t.Errorf("Retry-After was lost: %v", err)
			}
		}
		// The floor of the store is under every capability at once, so it comes last but
		// for keys. INV-16.
		c := w.claims(nil)
		for _, row := range []struct {
			minimum int64
			want    protocol.Code
		}{{int64(c.Fence), ""}, {int64(c.Fence) + 1, protocol.CodeStaleFence}} {
			floor(brokerv1.FloorKind_FLOOR_KIND_STORE, "store", row.minimum)
			if _, _, err := call(t.Context(), server, modelRequest(w.sign(c), "main", "hello")); protocol.CodeOf(err) != row.want {
				t.Errorf("store floor %d: %v, want %q", row.minimum, err, row.want)
			}
		}
		// A key that the root did not certify.
		stranger, err := capability.NewKey(strings.NewReader(strings.Repeat("x", 64)))
		if err != nil {
			t.Fatal(err)
		}
		token, err := stranger.Sign(w.claims(nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{token, "", "a.b.c", w.sign(w.claims(nil)) + "x"} {
			if _, _, err := call(t.Context(), server, modelRequest(bad, "main", "hello")); protocol.CodeOf(err) != refusal(bad == token) {
				t.Errorf("%.20q: %v", bad, err)
			}
		}
	})
}

// refusal of a capability: under a key that the root did not certify, or another.
func refusal(unknownKey bool) protocol.Code {
	if unknownKey {
		return protocol.CodeUnauthenticated
	}
	return protocol.CodePermissionDenied
}

// A broker that has not heard yet which keys sign refuses no key for good: work
// in flight over its restart tries again. Once it knows, an unknown key is refused.
func TestKeyBeforeItsStatement(t *testing.T) {
	inWorldAfter(t, func(w *world) { w.uncertified = true }, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		stranger, err := capability.NewKey(strings.NewReader(strings.Repeat("x", 64)))
		w.must(err)
		foreign, err := stranger.Sign(w.claims(nil))
		w.must(err)
		for _, token := range []string{w.sign(w.claims(nil)), foreign} {
			_, _, err := call(t.Context(), server, modelRequest(token, "main", "hello"))
			var coded *protocol.Error
			if !errors.As(err, &coded) || coded.Code != protocol.CodeUnavailable || coded.RetryAfter != time.Second {
				t.Errorf("before the statement: %v", err)
			}
		}
		w.feed.certified()
		time.Sleep(10 * time.Millisecond)
		if _, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), "main", "hello")); err != nil {
			t.Errorf("after the statement: %v", err)
		}
		time.Sleep(5 * time.Second) // another server's key may be on its way as long
		if _, _, err := call(t.Context(), server, modelRequest(foreign, "main", "hello")); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("an unknown key after the statement: %v", err)
		}
		// A key that this broker has just certified signs before any server's feed says so.
		fresh, err := capability.NewKey(rand.Reader)
		w.must(err)
		_, err = server.trust.CertifySigningKey(t.Context(), &brokerv1.CertifySigningKeyRequest{PublicKey: fresh.Public()})
		w.must(err)
		token, err := fresh.Sign(w.claims(nil))
		w.must(err)
		if _, _, err := call(t.Context(), server, modelRequest(token, "main", "hello")); err != nil {
			t.Errorf("a key that was certified a moment ago: %v", err)
		}
	})
}

// INV-13: a stale feed admits nothing new after 2 s; a flow lives on until the
// authority ttl, then it is closed; when the feed is back, so is admission.
func TestStaleFeed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		running := w.open(server, w.claims(nil))
		w.feed.silence(true)
		time.Sleep(3 * time.Second)
		begun := time.Now()
		if _, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), "main", "hello")); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("under a stale feed: %v", err)
		}
		d, err := server.broker.Describe(t.Context(), &brokerv1.DescribeRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest()})
		if err != nil || d.GetFeedAgeMs() < 2500 {
			t.Errorf("describe: %v %v", d.GetFeedAgeMs(), err)
		}
		err = <-running.done
		if took := time.Since(begun); protocol.CodeOf(err) != protocol.CodeUnavailable || took < 11*time.Second || took > 13*time.Second {
			t.Errorf("the flow ended after %s with %v", took, err)
		}
		w.feed.silence(false)
		time.Sleep(5 * time.Second)
		if _, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), "main", "hello")); err != nil {
			t.Errorf("after the feed is back: %v", err)
		}
	})
}

// stream is a model call that runs until it is closed.
type stream struct{ done chan error }

// open begins a slow call and returns when its first piece is there.
func (w *world) open(p peer, c capability.Claims) stream {
	w.t.Helper()
	s, err := p.broker.CallModel(context.Background(), modelRequest(w.sign(c), "main", "slowly"))
	w.must(err)
	if !s.Receive() {
		w.t.Fatal(s.Err())
	}
	out := stream{make(chan error, 1)}
	go func() {
		for s.Receive() {
		}
		out.done <- protocol.FromConnect(s.Err())
	}()
	return out
}

// Open flows are closed by whatever takes their authority, with the reason, and
// others go on. INV-13.
func TestOpenFlowsAreClosed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		const none = 1<<63 - 1
		for name, tc := range map[string]struct {
			change func(*capability.Claims)
			take   func(capability.Claims)
			want   protocol.Code
			within time.Duration
		}{
			"floor": {take: func(c capability.Claims) {
				w.feed.raise(brokerv1.FloorKind_FLOOR_KIND_SESSION, c.Session.String(), none)
			}, want: protocol.CodePermissionDenied, within: 100 * time.Millisecond},
			"fence": {take: func(c capability.Claims) {
				w.feed.raise(brokerv1.FloorKind_FLOOR_KIND_TURN, c.Turn.String(), int64(c.Fence)+1)
			}, want: protocol.CodeStaleFence, within: 100 * time.Millisecond},
			"path": {change: func(c *capability.Claims) { c.TenantName = "acme" }, take: func(capability.Claims) {
				w.paths.Set(consultest.Allow("model-main", "agent-assistant"))
			}, want: protocol.CodePolicyDenied, within: 100 * time.Millisecond},
			"permission": {change: func(c *capability.Claims) { c.TenantName = "acme" }, take: func(capability.Claims) {
				w.paths.Set(consul.Intention{Destination: "model-main", Sources: []consul.Source{
					{Name: "agent-assistant", Permissions: []consul.Permission{{Allow: true, HTTP: consul.HTTP{PathExact: "/v1/chat/completions"}}}},
					{Name: "acme--agent-assistant", Permissions: []consul.Permission{{Allow: true, HTTP: consul.HTTP{PathExact: "/v1/embeddings"}}}},
				}})
			}, want: protocol.CodePolicyDenied, within: 100 * time.Millisecond},
			"deadline": {change: func(c *capability.Claims) { c.Deadline = time.Now().Add(30 * time.Second) }, take: func(capability.Claims) {},
				want: protocol.CodeDeadlineExceeded, within: 31 * time.Second},
		} {
			c := w.claims(tc.change)
			doomed, other := w.open(server, c), w.open(server, w.claims(nil))
			begun := time.Now()
			tc.take(c)
			err := <-doomed.done
			if took := time.Since(begun); protocol.CodeOf(err) != tc.want || took > tc.within {
				t.Errorf("%s: after %s: %v", name, took, err)
			}
			select {
			case err := <-other.done:
				t.Errorf("%s: another flow ended too: %v", name, err)
			default:
			}
			w.allowAll()
			if err := <-other.done; err != nil { // to its end
				t.Errorf("%s: the other flow: %v", name, err)
			}
		}
	})
}

// A grant is revoked in the middle of streams: refused at once, flows at zero
// when the answer comes, the probe says so. INV-13.
func TestRevokeGrant(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		c, without := w.claims(nil), w.claims(func(c *capability.Claims) { c.Grant, c.SealedGrant = "", nil })
		token := w.sign(c)
		var doomed []stream
		for range 5 {
			doomed = append(doomed, w.open(server, w.claims(nil)))
		}
		other := w.open(server, without)
		probe := func() *brokerv1.ProbeResponse {
			t.Helper()
			p, err := server.broker.Probe(t.Context(), &brokerv1.ProbeRequest{Capability: token, GrantId: w.grant.ID.String()})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		if p := probe(); !p.GetAdmitted() || p.GetOpenFlows() != 5 || p.GetLastAdmittedUs() == 0 {
			t.Errorf("before: %v", p)
		}
		r, err := server.authority.RevokeGrant(t.Context(), &brokerv1.RevokeGrantRequest{GrantId: w.grant.ID.String()})
		if err != nil {
			t.Fatal(err)
		}
		if r.GetFlowsClosed() != 5 || r.GetFlowsZeroUs() < r.GetRevokedUs() || r.GetFlowsZeroUs()-r.GetRevokedUs() > 1_000_000 || r.GetLastAdmittedUs() > r.GetRevokedUs() {
			t.Errorf("%v", r)
		}
		for _, s := range doomed {
			if err := <-s.done; protocol.CodeOf(err) != protocol.CodePermissionDenied {
				t.Errorf("a flow ended with %v", err)
			}
		}
		if p := probe(); p.GetAdmitted() || p.GetCode() != string(protocol.CodePermissionDenied) || p.GetOpenFlows() != 0 {
			t.Errorf("after: %v", p)
		}
		if _, _, err := call(t.Context(), server, modelRequest(token, "main", "hello")); protocol.CodeOf(err) != protocol.CodePermissionDenied {
			t.Errorf("a new call: %v", err)
		}
		if err := <-other.done; err != nil {
			t.Errorf("a flow under no grant: %v", err)
		}
	})
}

// INV-19: a slow call holds its whole reservation; the rest comes back at its end.
func TestReservationIsHeld(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		c := w.claims(func(c *capability.Claims) { c.SliceCeiling = 3000 })
		running := w.open(server, c)
		again := func() error {
			c.ID, c.IssuedAt, c.ExpiresAt = newID[protocol.CapabilityKind](), time.Now(), time.Now().Add(time.Minute)
			_, _, err := call(t.Context(), server, modelRequest(w.sign(c), "main", "hello"))
			return err
		}
		if err := again(); protocol.CodeOf(err) != protocol.CodeBudgetExhausted {
			t.Errorf("while the first runs: %v", err)
		}
		if err := <-running.done; err != nil {
			t.Fatal(err)
		}
		if err := again(); err != nil {
			t.Errorf("after the first settled: %v", err)
		}
		u, err := server.broker.Usage(t.Context(), &brokerv1.UsageRequest{SliceIds: []string{c.Slice.String()}, Close: true})
		if err != nil || u.GetSlices()[0].GetDrawnMicroUsd() > 3000 {
			t.Errorf("%v %v", u, err)
		}
		if err := again(); protocol.CodeOf(err) != protocol.CodeBudgetExhausted {
			t.Errorf("after close: %v", err)
		}
	})
}
