package broker_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac/consul"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
)

// silentPaths is a server that says who may reach what, until it falls silent.
type silentPaths struct {
	broker.Paths
	mu             sync.Mutex // guards below
	stale, unknown bool
}

func (s *silentPaths) Decide(source, destination string, r *consul.Request) consul.Decision {
	d := s.Paths.Decide(source, destination, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.unknown:
		return consul.Decision{Unknown: true, Reason: "the server was not heard for long"}
	case s.stale:
		d.Stale, d.Reason = true, "the server was not heard for a while"
	}
	return d
}

func (s *silentPaths) set(stale, unknown bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale, s.unknown = stale, unknown
}

// While a server that says who may reach what is silent, nothing new begins, and what is
// open goes on; once it was silent for long, nothing does. It is unavailable, and no
// denial: a model need not learn that it is forbidden. INV-10 INV-13.
func TestSilentPaths(t *testing.T) {
	silent := &silentPaths{}
	inWorldAfter(t, func(w *world) { silent.Paths, w.pathsOf = w.paths, silent }, func(t *testing.T, w *world) {
		server := w.as(w.serverCert)
		ask := func() error {
			_, _, err := call(t.Context(), server, modelRequest(w.sign(w.claims(nil)), "main", "hello"))
			return err
		}
		if err := ask(); err != nil {
			t.Fatalf("while it speaks: %v", err)
		}
		began, finish := make(chan struct{}), make(chan struct{})
		w.next(func(out http.ResponseWriter, r *http.Request) {
			close(began)
			select {
			case <-finish:
			case <-r.Context().Done():
			}
		})
		ended := make(chan error, 1)
		go func() { ended <- ask() }()
		<-began

		silent.set(true, false)
		if err := ask(); protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "for a while") || strings.Contains(err.Error(), "refused by") {
			t.Errorf("a new request under stale paths: %v", err)
		}
		time.Sleep(2 * time.Second) // some sweeps
		select {
		case err := <-ended:
			t.Fatalf("what was open ended under stale paths: %v", err)
		default:
		}
		silent.set(true, true)
		select {
		case err := <-ended:
			if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), "for long") {
				t.Errorf("what was open ended with %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Error("what was open goes on under paths that nobody knows")
		}
		close(finish)
		silent.set(false, false)
		if err := ask(); err != nil {
			t.Errorf("once it speaks again: %v", err)
		}
	})
}

// A consul block takes the place of the directory, and its names are what can be reached.
func TestConsulBlock(t *testing.T) {
	with, err := broker.ParseConfig([]byte(goodConfig+"consul {\n  anything = \"is its adapter's\"\n}\n"), "b.hcl")
	if err != nil || with.Paths != "" || with.Consul == nil {
		t.Errorf("with a block: paths %q, %v", with.Paths, err)
	}
	if names := strings.Join(with.Governed(), " "); names != "model-main weather" {
		t.Errorf("what paths govern: %s", names)
	}
	without, err := broker.ParseConfig([]byte(goodConfig), "b.hcl")
	if err != nil || without.Paths != "paths" {
		t.Errorf("without one: paths %q, %v", without.Paths, err)
	}
}
