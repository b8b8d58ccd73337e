package mesh

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac/consul/mesh/meshtest"
	"bivouac/consul/settings"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
)

var dialled = link.Binding{Key: [32]byte{1, 2, 3}, Dialler: true}

// pair of identities, a server's and a broker's, that know what their agents say.
func pair(t *testing.T, server, broker *meshtest.Agent, datacenters ...string) (s, b *Identity) {
	t.Helper()
	s = New(Params{Source: server, Service: "bivouac-server", Peer: "bivouac-broker", Of: settings.Server, PeerOf: settings.Broker, Datacenters: datacenters})
	b = New(Params{Source: broker, Service: "bivouac-broker", Peer: "bivouac-server", Of: settings.Broker, PeerOf: settings.Server, Datacenters: datacenters})
	for _, i := range []*Identity{s, b} {
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- i.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	return s, b
}

// shows what one identity proves to the other, in the dialler's place.
func shows(t *testing.T, from, to *Identity) (link.Vouched, error) {
	t.Helper()
	shown, err := from.Show(dialled)
	if err != nil {
		return nil, err
	}
	return to.Check(dialled, shown)
}

// A server is believed by its broker, and the broker by it; whoever is anything else is
// not, and the text says why.
func TestJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, other := meshtest.NewAuthority(t), meshtest.NewAuthority(t)
		broker := meshtest.NewAgent(ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-broker")), meshtest.Listed(ca))
		server := meshtest.NewAgent(ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-server")), meshtest.Listed(ca))
		s, b := pair(t, server, broker)
		synctest.Wait()
		if v, err := shows(t, s, b); err != nil || v.Name() != "bivouac-server" || v.Holds() != nil || time.Until(v.Until()) > time.Hour {
			t.Fatalf("%v, %v", v, err)
		}
		shown, err := b.Show(link.Binding{Key: dialled.Key})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := s.Check(link.Binding{Key: dialled.Key}, shown); err != nil || v.Name() != "bivouac-broker" {
			t.Fatalf("%v, %v", v, err)
		}
		const there = "spiffe://" + meshtest.TrustDomain
		for name, tc := range map[string]struct {
			leaf []byte
			says string
		}{
			"another service":      {ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-broker")), `is the service "bivouac-broker"`},
			"another trust domain": {ca.Leaf(time.Hour, nil, "spiffe://66666666-2222-3333-4444-555555555555.consul/ns/default/dc/dc1/svc/bivouac-server"), "of another mesh"},
			"another namespace":    {ca.Leaf(time.Hour, nil, there+"/ns/team/dc/dc1/svc/bivouac-server"), `the namespace "team"`},
			"another partition":    {ca.Leaf(time.Hour, nil, there+"/ap/red/ns/default/dc/dc1/svc/bivouac-server"), `the partition "red"`},
			"another datacenter":   {ca.Leaf(time.Hour, nil, there+"/ns/default/dc/dc2/svc/bivouac-server"), `the datacenter "dc2"`},
			"another root":         {other.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-server")), "does not hang from a root"},
			"two names":            {ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-server"), meshtest.SPIFFE("x")), "names 2 URIs"},
			"no name":              {ca.Leaf(time.Hour, nil), "names 0 URIs"},
			"an agent's name":      {ca.Leaf(time.Hour, nil, there+"/agent/client/dc/dc1/id/x"), "no SPIFFE ID of a service"},
			"for servers alone": {ca.Leaf(time.Hour, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, meshtest.SPIFFE("bivouac-server")),
				"does not hang from a root"},
			"not yet": {ca.Leaf(time.Hour, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, meshtest.SPIFFE("bivouac-server")), "does not hang from a root"},
		} {
			forged, l := New(s.p), parsed(t, tc.leaf)
			forged.leaf.known.Store(&l)
			if _, err := shows(t, forged, b); protocol.CodeOf(err) != protocol.CodeUnauthenticated || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %v, want %q", name, err, tc.says)
			}
		}
		// the default partition may be written out
		written := meshtest.NewAgent(ca.Leaf(time.Hour, nil, there+"/ap/default/ns/default/dc/dc1/svc/bivouac-server"), meshtest.Listed(ca))
		w, _ := pair(t, written, broker)
		synctest.Wait()
		if _, err := shows(t, w, b); err != nil {
			t.Error(err)
		}
	})
}

// A proof is of one connection and of one side of it.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := meshtest.NewAuthority(t)
		s, b := pair(t, meshtest.NewAgent(ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-server")), meshtest.Listed(ca)), meshtest.NewAgent(ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-broker")), meshtest.Listed(ca)))
		synctest.Wait()
		shown, err := s.Show(dialled)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Check(dialled, shown); err != nil {
			t.Fatal(err)
		}
		for name, at := range map[string]link.Binding{"another connection": {Key: [32]byte{9}, Dialler: true}, "sent back": {Key: dialled.Key}} {
			if _, err := b.Check(at, shown); protocol.CodeOf(err) != protocol.CodeUnauthenticated || !strings.Contains(err.Error(), "not of this connection") {
				t.Errorf("%s: %v", name, err)
			}
		}
		var p proof
		if err := json.Unmarshal(shown, &p); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string][]byte{"nothing": nil, "no JSON": []byte("x"), "no chain": []byte(`{}`), "a long chain": longChain(p)} {
			if _, err := b.Check(dialled, text); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := b.Check(dialled, nil); !strings.Contains(err.Error(), "add service {} and mesh {} to the consul block of server.hcl") {
			t.Errorf("who shows nothing is told %v", err)
		}
	})
}

func longChain(p proof) []byte {
	for range maxChain {
		p.Chain = append(p.Chain, p.Chain[:len(p.Chain)/max(1, strings.Count(string(p.Chain), "BEGIN"))]...)
	}
	b, _ := json.Marshal(p) // of bytes
	return b
}

// While a root is replaced leaves under both count, for as long as Consul lists both; a
// proof under a root that is listed no more holds no more.
func TestRootReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, next := meshtest.NewAuthority(t), meshtest.NewAuthority(t)
		server := meshtest.NewAgent(old.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-server")), meshtest.Listed(old))
		broker := meshtest.NewAgent(old.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-broker")), meshtest.Listed(old))
		s, b := pair(t, server, broker)
		synctest.Wait()
		before, err := shows(t, s, b)
		if err != nil {
			t.Fatal(err)
		}
		changed := s.Changed()
		for _, a := range []*meshtest.Agent{server, broker} {
			a.Set(func() { a.Roots = meshtest.Listed(next, old) })
		}
		server.Set(func() { server.Leaf = next.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-server")) })
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case <-changed:
		default:
			t.Error("nobody is told of the new leaf")
		}
		after, err := shows(t, s, b)
		if err != nil || before.Holds() != nil || after.Holds() != nil {
			t.Errorf("while both roots are listed: %v, %v, %v", err, before.Holds(), after.Holds())
		}
		broker.Set(func() { broker.Roots = meshtest.Listed(next) })
		time.Sleep(time.Second)
		synctest.Wait()
		if err := before.Holds(); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("under a root that is gone: %v", err)
		}
		if err := after.Holds(); err != nil {
			t.Error(err)
		}
	})
}

// A Consul that is away changes nothing until the leaf ends; then nothing is shown and
// nothing believed, and the text says since when and why. When it is back all is well.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := meshtest.NewAuthority(t)
		server := meshtest.NewAgent(ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-server")), meshtest.Listed(ca))
		broker := meshtest.NewAgent(ca.Leaf(1000*time.Hour, nil, meshtest.SPIFFE("bivouac-broker")), meshtest.Listed(ca))
		s, b := pair(t, server, broker)
		unasked := New(s.p) // nobody runs it
		if err := unasked.Ready(); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("ready before Consul was asked: %v", err)
		}
		if _, err := unasked.Show(dialled); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "no mesh identity to bivouac-server yet") {
			t.Errorf("shown before there is anything: %v", err)
		}
		synctest.Wait()
		v, err := shows(t, s, b)
		if err != nil || s.Ready() != nil {
			t.Fatal(err, s.Ready())
		}
		for _, a := range []*meshtest.Agent{server, broker} {
			a.Set(func() { a.Away = true })
		}
		time.Sleep(59 * time.Minute)
		if _, err := shows(t, s, b); err != nil || v.Holds() != nil || s.Ready() != nil {
			t.Errorf("a minute before its end: %v, %v, %v", err, v.Holds(), s.Ready())
		}
		time.Sleep(2 * time.Minute)
		if err := v.Holds(); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "ended at") {
			t.Errorf("after its end: %v", err)
		}
		if err := s.Ready(); protocol.CodeOf(err) != protocol.CodeUnavailable {
			t.Errorf("ready after the end: %v", err)
		}
		if _, err := s.Show(dialled); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "ended at") || !strings.Contains(err.Error(), "nobody there") {
			t.Errorf("shown after its end: %v", err)
		}
		for _, a := range []*meshtest.Agent{server, broker} {
			a.Set(func() { a.Away, a.Roots = false, meshtest.Listed(ca) })
		}
		server.Set(func() { server.Leaf = ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-server")) })
		time.Sleep(most + time.Second)
		if _, err := shows(t, s, b); err != nil {
			t.Errorf("once Consul is back: %v", err)
		}
	})
}

// What is no leaf of this service, or is over, takes nothing's place, and no error holds a
// key.
func TestBadAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := meshtest.NewAuthority(t)
		good := ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-server"))
		server := meshtest.NewAgent(good, meshtest.Listed(ca))
		s, b := pair(t, server, meshtest.NewAgent(ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-broker")), meshtest.Listed(ca)))
		synctest.Wait()
		var a, second leafAnswer
		_ = json.Unmarshal(good, &a)
		_ = json.Unmarshal(ca.Leaf(time.Hour, nil, meshtest.SPIFFE("bivouac-server")), &second)
		mixed, _ := json.Marshal(leafAnswer{CertPEM: a.CertPEM, PrivateKeyPEM: second.PrivateKeyPEM})
		for name, body := range map[string][]byte{
			"another service": ca.Leaf(time.Hour, nil, meshtest.SPIFFE("other")), "ended": ca.Leaf(-time.Second, nil, meshtest.SPIFFE("bivouac-server")),
			"another key": mixed, "cut off": good[:len(good)/2], "empty": []byte(`{}`),
		} {
			server.Set(func() { server.Leaf = body })
			time.Sleep(10 * time.Second)
			if _, err := shows(t, s, b); err != nil {
				t.Errorf("%s: the leaf that was there counts no more: %v", name, err)
			}
			if err := s.leaf.reason(); err == nil || strings.Contains(err.Error(), "PRIVATE") {
				t.Errorf("%s: %v", name, err)
			}
		}
		server.Set(func() { server.Roots = []byte(`{"TrustDomain":"","Roots":[]}`) })
		time.Sleep(10 * time.Second)
		if err := s.roots.reason(); err == nil || !strings.Contains(err.Error(), "it lists no root") {
			t.Errorf("no root: %v", err)
		}
	})
}

// parsed is a leaf without a look at what it names.
func parsed(t *testing.T, body []byte) (l leaf) {
	t.Helper()
	var a leafAnswer
	if err := json.Unmarshal(body, &a); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair([]byte(a.CertPEM), []byte(a.PrivateKeyPEM))
	if err != nil {
		t.Fatal(err)
	}
	return leaf{cert: pair.Leaf, chain: []byte(a.CertPEM), key: pair.PrivateKey.(crypto.Signer)}
}

func FuzzID(f *testing.F) {
	for _, text := range []string{meshtest.SPIFFE("a"), "spiffe://d/ap/default/ns/default/dc/dc1/svc/a", "spiffe://d/ns//dc/x/svc/a", "spiffe://u@d:1/ns/default/dc/x/svc/a?q#f", "https://d/ns/default/dc/x/svc/a", "spiffe://d/ns/default/dc/x/svc/a%2Fb"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		got, err := parseID(u)
		if err != nil {
			return
		}
		for _, part := range []string{got.trustDomain, got.partition, got.namespace, got.datacenter, got.service} {
			if part == "" || strings.Contains(part, "/") {
				t.Errorf("%q: %+v", text, got)
			}
		}
	})
}
