//go:build linux

package mesh_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"bivouac/consul/client"
	"bivouac/consul/mesh"
	"bivouac/consul/settings"
	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/test/engines/consulserver"
	"bivouac/test/engines/engine"
)

func TestMain(m *testing.M) { os.Exit(consulserver.Main(m)) }

// of a process: its identity at a Consul, by a token's file.
func of(t *testing.T, at *consulserver.Server, address, service, peer, token string) *mesh.Identity {
	t.Helper()
	asked, err := client.New(client.Config{Address: address, CAFile: at.CAFile(), Token: client.TokenFile(token), Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(asked.Close)
	i := mesh.New(mesh.Params{Source: asked, Service: service, Peer: peer, Of: settings.Server, PeerOf: settings.Broker})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return i
}

// writes is a token that may have the leaf of a service.
func writes(t *testing.T, at *consulserver.Server, service string) string {
	t.Helper()
	file, _ := at.Token(t, "service \""+service+"\" { policy = \"write\" }\n", 0)
	return file
}

// within waits until a condition is, and fails with what it last said.
func within(t *testing.T, what string, is func() error) {
	t.Helper()
	const patience = 3 * time.Minute // a machine may have much else to do
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if last = is(); last == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, last)
}

// linked is a broker's listener and a server's client, with an identity each beside their
// certificates under one root.
type linked struct {
	root    *identitytest.Root
	address string
}

func listen(t *testing.T, v link.Vouch) *linked {
	t.Helper()
	l := &linked{root: identitytest.NewRoot()}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.address = tcp.Addr().String()
	own := l.root.Leaf(identity.RoleBroker, "brk_1", "")
	s, err := link.NewServer(link.ServerConfig{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, link.VouchedFrom(r.Context()).Name())
		}),
		Root: l.root.Certificate, Certificate: func() (*tls.Certificate, error) { return own, nil },
		Vouch: v, VouchFrom: []identity.Role{identity.RoleServer}, Grace: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, nil, tcp) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *linked) dial(t *testing.T, v link.Vouch) *link.Client {
	t.Helper()
	own := l.root.Leaf(identity.RoleServer, "srv_1", "")
	c, err := link.NewClient(link.Config{
		Address: l.address, Trust: link.Trust{Role: identity.RoleBroker, Root: l.root.Certificate}, Vouch: v,
		Certificate: func() (*tls.Certificate, error) { return own, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ask(ctx context.Context, c *link.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/", nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}

// names of a pair of services in one server.
func names(at *consulserver.Server) (server, broker string) {
	prefix := at.Prefix()
	return prefix + "server", prefix + "broker"
}

// The two of a pair prove to each other; a third service of the same mesh, and one of
// another mesh, is refused.
func TestReal(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		server, broker := names(at)
		here, there := of(t, at, at.Address(), server, broker, writes(t, at, server)), of(t, at, at.Address(), broker, server, writes(t, at, broker))
		within(t, "identities", func() error { return errors.Join(here.Ready(), there.Ready()) })
		l := listen(t, there)
		if err := ask(t.Context(), l.dial(t, here)); err != nil {
			t.Fatal(err)
		}
		third := of(t, at, at.Address(), server+"-2", broker, writes(t, at, server+"-2"))
		elsewhere := consulserver.StartDev(t, p)
		stranger := of(t, elsewhere, elsewhere.Address(), server, broker, writes(t, elsewhere, server))
		within(t, "identities", func() error { return errors.Join(third.Ready(), stranger.Ready()) })
		for name, tc := range map[string]struct {
			who  link.Vouch
			says string
		}{"another service": {third, "is the service"}, "another mesh": {stranger, "of another mesh"}, "nobody": {nil, "shows no identity of Consul's mesh"}} {
			if err := ask(t.Context(), l.dial(t, tc.who)); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %v, want %q", name, err, tc.says)
			}
		}
	})
}

// A token without the right to the leaf gets none, and the text names what mends it; with
// the right in the file the identity is there.
func TestRealToken(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Open(t, p)
		server, broker := names(at)
		file, _ := at.Token(t, "service \""+server+"\" { policy = \"read\" }\n", 0)
		i := of(t, at, at.Address(), server, broker, file)
		says := func(what, want string) {
			t.Helper()
			within(t, what, func() error {
				if err := i.Ready(); err == nil || !strings.Contains(err.Error(), want) {
					return fmt.Errorf("%v, want %q", err, want)
				}
				return nil
			})
		}
		says("no right", "bivouac consul setup --apply")
		consulserver.WriteToken(t, file, "5a1f6f0e-0000-4000-8000-000000000000")
		says("no token", "token")
		good, err := os.ReadFile(writes(t, at, server))
		if err != nil {
			t.Fatal(err)
		}
		consulserver.WriteToken(t, file, strings.TrimSpace(string(good)))
		within(t, "the right token", i.Ready)
	})
}

// authority is Consul's own, made anew: another key, or another life of leaves.
func configure(t *testing.T, at *consulserver.Server, change func(map[string]any)) {
	t.Helper()
	root := at.Root(t)
	c, _, err := root.Connect().CAGetConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	change(c.Config)
	within(t, "another authority", func() error {
		_, err := root.Connect().CASetConfig(c, nil)
		return err
	})
}

// activeRoot is that under which leaves are made now.
func activeRoot(t *testing.T, c *api.Client) string {
	t.Helper()
	all, _, err := c.Connect().CARoots(nil)
	if err != nil {
		t.Fatal(err)
	}
	return all.ActiveRootID
}

// The root is replaced twice while requests run on several connections: none is lost, and
// both sides end up with leaves that are proven under the new one.
func TestRealRootReplaced(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.StartDev(t, p)
		token := t.TempDir() + "/token"
		consulserver.WriteToken(t, token, at.Management())
		here, there := of(t, at, at.Address(), "bivouac-server", "bivouac-broker", token), of(t, at, at.Address(), "bivouac-broker", "bivouac-server", token)
		within(t, "identities", func() error { return errors.Join(here.Ready(), there.Ready()) })
		l := listen(t, there)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var g errgroup.Group
		var sent atomic.Int64
		for range 3 {
			c := l.dial(t, here)
			g.Go(func() error { return c.RunVouch(ctx) })
			g.Go(func() error {
				for ctx.Err() == nil {
					if err := ask(ctx, c); err != nil && ctx.Err() == nil {
						return err
					}
					sent.Add(1)
				}
				return nil
			})
		}
		admin := at.Root(t)
		for _, key := range []map[string]any{{"PrivateKeyType": "ec", "PrivateKeyBits": 384}, {"PrivateKeyType": "rsa", "PrivateKeyBits": 2048}} {
			before, root := here.Leaf(), activeRoot(t, admin)
			configure(t, at, func(c map[string]any) { maps.Copy(c, key) })
			within(t, "another root", func() error {
				if activeRoot(t, admin) == root {
					return errors.New("it is still the old one")
				}
				return nil
			})
			within(t, "other leaves", func() error {
				if here.Leaf() == before {
					return errors.New("the leaf is still the old one")
				}
				return errors.Join(here.Ready(), there.Ready())
			})
			for count := sent.Load(); sent.Load() < count+100; time.Sleep(time.Millisecond) {
				if ctx.Err() != nil {
					break
				}
			}
			// and a connection that is new
			if err := ask(t.Context(), l.dial(t, here)); err != nil {
				t.Errorf("a new connection: %v", err)
			}
		}
		stop()
		if err := g.Wait(); err != nil {
			t.Fatalf("after %d requests one was lost: %v", sent.Load(), err)
		}
	})
}

// A Consul that goes away under an identity changes nothing while the leaf lasts: new
// connections are proven too. One that is away at the start is waited for.
func TestRealAway(t *testing.T) {
	consulserver.Each(t, func(t *testing.T, p engine.Program) {
		at := consulserver.Start(t, p)
		server, broker := names(at)
		mine, theirs := writes(t, at, server), writes(t, at, broker)
		at.Stop(t)
		here, there := of(t, at, at.Address(), server, broker, mine), of(t, at, at.Address(), broker, server, theirs)
		l := listen(t, there)
		c := l.dial(t, here)
		if err := ask(t.Context(), c); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "no mesh identity to "+server+" yet") {
			t.Errorf("before Consul was there: %v", err)
		}
		at.Start(t)
		within(t, "identities", func() error { return errors.Join(here.Ready(), there.Ready()) })
		if err := ask(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		at.Kill(t)
		if err := errors.Join(ask(t.Context(), c), ask(t.Context(), l.dial(t, here)), here.Ready()); err != nil {
			t.Errorf("while Consul is away: %v", err)
		}
		at.Start(t)
		if err := ask(t.Context(), l.dial(t, here)); err != nil {
			t.Error(err)
		}
	})
}
