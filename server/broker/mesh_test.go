package broker_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/consul/consultest"
	"bivouac/consul/mesh"
	"bivouac/consul/mesh/meshtest"
	"bivouac/consul/settings"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/capability"
)

// meshed is a world whose broker and server prove identities of a mesh, each by an agent of
// its own. A virtual hour of it takes ten seconds: leaves are short here.
type meshed struct {
	*world
	ca             *meshtest.Authority
	server, broker *meshtest.Agent
}

// inMesh runs test with leaves that last so long from the world's first moment.
func inMesh(t *testing.T, ofServer, ofBroker time.Duration, test func(t *testing.T, m *meshed)) {
	t.Helper()
	m := &meshed{}
	inWorldAfter(t, func(w *world) {
		m.world, m.ca = w, meshtest.NewAuthority(w.t)
		m.server, m.broker = meshtest.NewAgent(nil, meshtest.Listed(m.ca)), meshtest.NewAgent(nil, meshtest.Listed(m.ca))
		m.leaves(m.ca, ofServer, ofBroker)
		w.own = &broker.Own{Service: ownService, Caller: ownCaller}
		w.here, w.there = m.identity(settings.Broker, ownService, ownCaller, m.broker), m.identity(settings.Server, ownCaller, ownService, m.server)
		m.may(true)
	}, func(t *testing.T, _ *world) { test(t, m) })
}

// run something until the world ends.
func (m *meshed) run(f func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return f(ctx) })
	m.t.Cleanup(func() {
		stop()
		if err := g.Wait(); err != nil {
			m.t.Error(err)
		}
	})
}

func (m *meshed) identity(of settings.Of, service, peer string, agent *meshtest.Agent) *mesh.Identity {
	i := mesh.New(mesh.Params{Source: agent, Service: service, Peer: peer, Of: of, PeerOf: settings.Other(of)})
	m.run(i.Run)
	return i
}

// leaves of both under an authority; zero leaves one as it is.
func (m *meshed) leaves(ca *meshtest.Authority, ofServer, ofBroker time.Duration) {
	if ofServer != 0 {
		m.server.Set(func() { m.server.Leaf = ca.Leaf(ofServer, nil, meshtest.SPIFFE(ownCaller)) })
	}
	if ofBroker != 0 {
		m.broker.Set(func() { m.broker.Leaf = ca.Leaf(ofBroker, nil, meshtest.SPIFFE(ownService)) })
	}
}

// roots that both believe.
func (m *meshed) roots(all ...*meshtest.Authority) {
	for _, a := range []*meshtest.Agent{m.server, m.broker} {
		a.Set(func() { a.Roots = meshtest.Listed(all...) })
	}
}

// may says whether the server may reach the broker.
func (m *meshed) may(allow bool) {
	m.paths.Set(consultest.Allow("model-main", "agent-assistant"), consultest.Allow("weather", "agent-assistant"), pathTo(ownCaller, allow))
}

// caller is the server, which keeps itself proven.
func (m *meshed) caller() peer {
	c := m.dial(m.serverCert, m.there)
	m.run(c.RunVouch)
	return m.over(c)
}

// runner's claims for a turn that is placed with it.
func (m *meshed) runner(c *capability.Claims) {
	c.Presenter, c.Attempt = thumbprint(m.runnerCert), newID[protocol.AttemptKind]()
}

// begun are a server's model stream, its tool call, and its model call that waits for its
// next try.
type begun struct {
	ends map[string]chan error
	left map[string]chan time.Time // when the far side saw the end
}

func (m *meshed) begin(server peer) begun {
	m.t.Helper()
	b := begun{ends: map[string]chan error{}, left: map[string]chan time.Time{"stream": make(chan time.Time, 1), "tool": make(chan time.Time, 1)}}
	reached := make(chan struct{}, 2)
	m.next(func(w http.ResponseWriter, r *http.Request) {
		m.scripted.ServeHTTP(w, r)
		b.left["stream"] <- time.Now()
	})
	m.tools.answers(func(_ http.ResponseWriter, r *http.Request) {
		reached <- struct{}{}
		<-r.Context().Done()
		b.left["tool"] <- time.Now()
	})
	b.ends["stream"] = m.open(server, m.claims(nil)).done
	run := func(name string, f func() error) {
		b.ends[name] = make(chan error, 1)
		go func() { b.ends[name] <- f() }()
	}
	run("tool", func() error {
		_, err := server.broker.Invoke(context.Background(), m.invocation(nil, nil))
		return protocol.FromConnect(err)
	})
	<-reached
	run("waiting", func() error {
		_, _, err := call(context.Background(), server, modelRequest(m.sign(m.claims(nil)), "main", "429"))
		return err
	})
	time.Sleep(time.Second)
	return b
}

// What a server has open at the broker ends with the proof of the server's mesh identity,
// or with the intention that lets it call: within a second, with a typed error, and nothing
// more is sent for it. A runner's stream goes on: runners are in no mesh. Once the proof is
// back so is the server.
func TestMeshProofEnds(t *testing.T) {
	const leaf = 6 * time.Second
	for name, tc := range map[string]struct {
		leaf      time.Duration
		end, back func(m *meshed)
		code      protocol.Code
		says      string
	}{
		"the leaf ended": {leaf, func(m *meshed) {}, func(m *meshed) { m.leaves(m.ca, time.Hour, 0) },
			protocol.CodeUnavailable, "the mesh identity of bivouac-server"},
		"the root is listed no more": {time.Hour, func(m *meshed) {
			m.broker.Set(func() { m.broker.Roots = meshtest.Listed(meshtest.NewAuthority(m.t)) })
		}, func(m *meshed) { m.roots(m.ca) }, protocol.CodeUnauthenticated, "does not hang from a root"},
		"the intention denies": {time.Hour, func(m *meshed) { m.may(false) }, func(m *meshed) { m.may(true) },
			protocol.CodePolicyDenied, "the intention bivouac-server => bivouac-broker in Consul denies"},
	} {
		t.Run(name, func(t *testing.T) {
			first := time.Time{}
			inMesh(t, tc.leaf, time.Hour, func(t *testing.T, m *meshed) {
				first = time.Now().Add(-2 * time.Second) // of the world
				server, runner := m.caller(), m.as(m.runnerCert)
				other := m.open(runner, m.claims(m.runner))
				open := m.begin(server)
				end := time.Now()
				if tc.leaf == leaf {
					end = first.Add(leaf)
				}
				tc.end(m)
				for what, ended := range open.ends {
					err := <-ended
					code := tc.code
					if what == "tool" {
						code = protocol.CodeOutcomeUnknown // it had left: INV-5
					}
					if took := time.Since(end); protocol.CodeOf(err) != code || !strings.Contains(err.Error(), tc.says) || took < 0 || took > time.Second {
						t.Errorf("the %s ended after %s with %v", what, took, err)
					}
				}
				for what, left := range open.left {
					if took := (<-left).Sub(end); took > time.Second {
						t.Errorf("the %s ended at its far side after %s", what, took)
					}
				}
				provider, tool := len(m.scripted.Received()), len(m.tools.requests())
				for range 3 {
					if _, _, err := call(t.Context(), server, modelRequest(m.sign(m.claims(nil)), "main", "hello")); protocol.CodeOf(err) != tc.code {
						t.Errorf("a new call: %v", err)
					}
					time.Sleep(5 * time.Second)
				}
				if p, n := len(m.scripted.Received())-provider, len(m.tools.requests())-tool; p != 0 || n != 0 || tool != 1 {
					t.Errorf("%d and %d requests left after the end; the tool was called %d times", p, n, tool)
				}
				tc.back(m)
				time.Sleep(7 * time.Second) // the most between two questions about a leaf or roots, and some
				if text, _, err := call(t.Context(), server, modelRequest(m.sign(m.claims(nil)), "main", "hello")); err != nil || text == "" {
					t.Errorf("once it is back: %q, %v", text, err)
				}
				if err := <-other.done; err != nil {
					t.Errorf("the runner's stream: %v", err)
				}
			})
		})
	}
}

// A stream goes on to its end, whole, while both leaves are replaced before they end, and
// the root under them, too.
func TestMeshProofRenewed(t *testing.T) {
	inMesh(t, time.Minute, time.Minute, func(t *testing.T, m *meshed) {
		server := m.caller()
		type answer struct {
			text string
			err  error
		}
		came := make(chan answer, 1)
		begun := time.Now()
		go func() {
			text, _, err := call(context.Background(), server, modelRequest(m.sign(m.claims(nil)), "main", "slowly"))
			came <- answer{text, err}
		}()
		time.Sleep(20 * time.Second)
		next := meshtest.NewAuthority(t)
		m.roots(next, m.ca)
		time.Sleep(10 * time.Second)
		m.leaves(next, time.Minute, time.Minute) // to the 92nd second
		time.Sleep(10 * time.Second)
		m.roots(next)
		time.Sleep(30 * time.Second)
		m.leaves(next, time.Hour, time.Hour)
		a := <-came
		if took := time.Since(begun); a.err != nil || a.text != "!!!!!!" || took < 95*time.Second {
			t.Errorf("after %s: %q, %v", took, a.text, a.err)
		}
		if n := len(m.scripted.Received()); n != 1 {
			t.Errorf("%d requests at the provider", n)
		}
	})
}

// The feed goes on over the end of either proof, and what is revoked ends at once; it
// begins anew under no ended proof, so that the broker's knowledge grows old and nothing is
// admitted by it. INV-13.
func TestMeshFeedGoesOn(t *testing.T) {
	for name, of := range map[string]struct{ server, broker time.Duration }{
		"the server's leaf ended": {5 * time.Second, time.Hour},
		"the broker's leaf ended": {time.Hour, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inMesh(t, of.server, of.broker, func(t *testing.T, m *meshed) {
				server, runner := m.caller(), m.as(m.runnerCert)
				doomed, kept := m.open(runner, m.claims(m.runner)), m.open(runner, m.claims(func(c *capability.Claims) {
					m.runner(c)
					c.Grant, c.SealedGrant = "", nil
				}))
				time.Sleep(20 * time.Second)
				if _, _, err := call(t.Context(), server, modelRequest(m.sign(m.claims(nil)), "main", "hello")); protocol.CodeOf(err) != protocol.CodeUnavailable {
					t.Errorf("the server without a proof, or without the broker's: %v", err)
				}
				if age := m.world.broker.Feed().Age(); age < 0 || age > time.Second {
					t.Errorf("the feed is %s old", age)
				}
				begun := time.Now()
				m.feed.raise(brokerv1.FloorKind_FLOOR_KIND_GRANT, m.grant.ID.String(), 1<<63-1)
				if err := <-doomed.done; protocol.CodeOf(err) != protocol.CodePermissionDenied || time.Since(begun) > time.Second {
					t.Errorf("what was revoked ended after %s with %v", time.Since(begun), err)
				}
				m.feed.silence(true) // it breaks off
				time.Sleep(3 * time.Second)
				m.feed.silence(false)
				cut := time.Now()
				if err := <-kept.done; protocol.CodeOf(err) != protocol.CodeUnavailable || time.Since(cut) > 15*time.Second {
					t.Errorf("without a feed a stream ended after %s with %v", time.Since(cut), err)
				}
				again := func() error {
					_, _, err := call(t.Context(), runner, modelRequest(m.sign(m.claims(func(c *capability.Claims) {
						m.runner(c)
						c.Grant, c.SealedGrant = "", nil
					})), "main", "hello"))
					return err
				}
				if err := again(); protocol.CodeOf(err) != protocol.CodeUnavailable {
					t.Errorf("under a feed that broke off: %v", err)
				}
				if n := strings.Count(m.logged(), "the feed broke off"); n < 5 || n > 100 {
					t.Errorf("it was asked for %d times in %s", n, time.Since(cut))
				}
				m.leaves(m.ca, time.Hour, time.Hour)
				time.Sleep(20 * time.Second)
				if err := again(); err != nil {
					t.Errorf("once the proof is back: %v", err)
				}
			})
		})
	}
}
