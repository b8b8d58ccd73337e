package broker_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac/consul"
	"bivouac/consul/consultest"
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/protocol/brokerv1"
)

const (
	ownService = "bivouac-broker"
	ownCaller  = "bivouac-server"
)

// pathTo is an intention about this broker itself, in Consul's words.
func pathTo(source string, allow bool, permissions ...consul.Permission) consul.Intention {
	at := "the intention " + source + " => " + ownService + " in Consul"
	return consul.Intention{Destination: ownService, At: at, Sources: []consul.Source{{Name: source, Allow: allow, Permissions: permissions, At: at}}}
}

// Where a broker is a service, an intention says which server may call it: what none allows
// is denied, and one that is turned to deny ends what is open, with a refusal that names
// it and the command that opens the link. Runners are no services, and their calls are not
// its matter. INV-10.
func TestOwnIntention(t *testing.T) {
	inWorldAfter(t, func(w *world) { w.own = &broker.Own{Service: ownService, Caller: ownCaller} }, func(t *testing.T, w *world) {
		server, runner := w.as(w.serverCert), w.as(w.runnerCert)
		set := func(own ...consul.Intention) {
			w.paths.Set(append([]consul.Intention{consultest.Allow("model-main", "agent-assistant")}, own...)...)
		}
		ask := func() error {
			_, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), "main", "hello"))
			return err
		}
		describe := func() error {
			_, err := server.broker.Describe(t.Context(), &brokerv1.DescribeRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest()})
			return protocol.FromConnect(err)
		}
		denied := func(what string, err error, words ...string) {
			t.Helper()
			if protocol.CodeOf(err) != protocol.CodePolicyDenied || protocol.DetailOf(err) != protocol.DetailIntention {
				t.Errorf("%s: %v", what, err)
			}
			for _, word := range words {
				if err != nil && !strings.Contains(err.Error(), word) {
					t.Errorf("%s: %q is not in %v", what, word, err)
				}
			}
		}
		const open = "consul intention create -allow bivouac-server bivouac-broker"
		set()
		denied("without an intention", describe(), "bivouac-server may not reach bivouac-broker", open)
		denied("a call without an intention", ask(), open)
		_, err := w.as(strangers(t)).trust.EnrollServer(t.Context(), &brokerv1.EnrollServerRequest{Code: "x"})
		denied("an enrolment without an intention", protocol.FromConnect(err), open)
		if _, _, err := call(t.Context(), runner, modelRequest(w.sign(w.claims(nil)), "main", "hello")); protocol.DetailOf(err) == protocol.DetailIntention {
			t.Errorf("a runner is taken for a service: %v", err)
		}
		set(pathTo(ownCaller, true))
		if err := describe(); err != nil {
			t.Errorf("allowed: %v", err)
		}
		if err := ask(); err != nil {
			t.Errorf("allowed: %v", err)
		}
		set(pathTo("somebody-else", true))
		denied("somebody else may", describe(), open)

		set(pathTo("*", true))
		began, finish := make(chan struct{}), make(chan struct{})
		defer close(finish)
		w.next(func(_ http.ResponseWriter, r *http.Request) {
			close(began)
			select {
			case <-finish:
			case <-r.Context().Done():
			}
		})
		ended := make(chan error, 1)
		go func() { ended <- ask() }()
		<-began
		set(pathTo(ownCaller, false))
		select {
		case err := <-ended:
			denied("what was open", err, "the intention bivouac-server => bivouac-broker in Consul denies", "consul intention create -replace -allow bivouac-server bivouac-broker")
		case <-time.After(5 * time.Second):
			t.Error("what was open goes on under a deny")
		}
		denied("the next", ask())
		set(pathTo("*", false))
		denied("a deny of all", describe(), open)
		set(pathTo(ownCaller, true))
		if err := ask(); err != nil {
			t.Errorf("allowed again: %v", err)
		}
		// about single procedures
		set(pathTo(ownCaller, false, consul.Permission{Allow: true, HTTP: consul.HTTP{PathExact: "/bivouac.broker.v1.BrokerService/Describe"}}))
		if err := describe(); err != nil {
			t.Errorf("the one procedure that is allowed: %v", err)
		}
		denied("another procedure", ask())
	})
}

// While nobody knows whether a server may call, nothing new begins, and that is no denial.
func TestOwnIntentionUnknown(t *testing.T) {
	silent := &silentPaths{}
	inWorldAfter(t, func(w *world) {
		w.own, silent.Paths, w.pathsOf = &broker.Own{Service: ownService, Caller: ownCaller}, w.paths, silent
	}, func(t *testing.T, w *world) {
		w.paths.Set(pathTo(ownCaller, true))
		server := w.as(w.serverCert)
		describe := func() error {
			_, err := server.broker.Describe(t.Context(), &brokerv1.DescribeRequest{CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest()})
			return protocol.FromConnect(err)
		}
		if err := describe(); err != nil {
			t.Fatal(err)
		}
		for _, stale := range []bool{true, false} {
			silent.set(stale, !stale)
			if err := describe(); protocol.CodeOf(err) != protocol.CodeUnavailable || protocol.DetailOf(err) != "" {
				t.Errorf("stale %v: %v", stale, err)
			}
		}
		silent.set(false, false)
		if err := describe(); err != nil {
			t.Error(err)
		}
	})
}

// strangers are met before they are enrolled.
func strangers(t *testing.T) *tls.Certificate {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := identity.SelfSigned(key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &cert
}
