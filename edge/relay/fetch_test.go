package relay

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bivouac/edge/lease"
	"bivouac/edge/protocol"
)

// doorOf is a relay as sandboxed code reaches it, and the broker behind it.
func doorOf(t *testing.T, broker http.HandlerFunc) (*rig, *httptest.Server) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.StripPrefix(protocol.EgressPath, broker))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	r := &rig{}
	l := lease.NewLease(func() time.Duration { return r.now })
	l.Renew(0, 15*time.Second, time.Minute)
	r.Relay = New(Config{Broker: Over(s.Client(), s.URL), Lease: l, Model: "main"})
	r.Refresh("cap-1", Slice{})
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) { r.Fetch(w, in, "go-proxy") }))
	t.Cleanup(door.Close)
	return r, door
}

func get(t *testing.T, url string, header http.Header) (status int, text string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// The broker is told destination, target and capability by the relay, whatever the
// sandbox says of them, and gets nothing else that identifies anybody. INV-12.
func TestFetchSaysItsOwn(t *testing.T) {
	var got http.Header
	_, door := doorOf(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		w.Header().Set("Etag", "e")
		_, _ = io.WriteString(w, "here")
	})
	status, text, err := get(t, door.URL+"/m/@v/list?a=b", http.Header{"Bivouac-Capability": {"mine"}, "Bivouac-Destination": {"other"}, "Bivouac-Target": {"/other"},
		"Authorization": {"Bearer x"}, "Cookie": {"a=b"}, "Git-Protocol": {"version=2"}, "Range": {strings.Repeat("x", maxHeader+1)}})
	if err != nil || status != 200 || text != "here" {
		t.Errorf("%d %q %v", status, text, err)
	}
	if got.Get(protocol.EgressCapability) != "cap-1" || got.Get(protocol.EgressDestination) != "go-proxy" || got.Get(protocol.EgressTarget) != "/m/@v/list?a=b" ||
		got.Get("Git-Protocol") == "" || got.Get("Authorization")+got.Get("Cookie")+got.Get("Range") != "" {
		t.Errorf("the broker was told %v", got)
	}
}

// A door is no proxy: no form of a request names another host.
func TestFetchIsNoProxy(t *testing.T) {
	asked := 0
	_, door := doorOf(t, func(w http.ResponseWriter, _ *http.Request) { asked++ })
	for _, line := range []string{"CONNECT 169.254.169.254:80", "GET http://169.254.169.254/x", "GET /" + strings.Repeat("a", maxTarget)} {
		c, err := net.Dial("tcp", door.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, line+" HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\n\r\n")
		b, _ := io.ReadAll(c)
		c.Close()
		if !strings.HasPrefix(string(b), "HTTP/1.1 400") || asked != 0 {
			t.Errorf("%.40s: %.200s", line, b)
		}
	}
	if status, _, err := get(t, door.URL+"/x", nil); status != 200 || err != nil || asked != 1 {
		t.Errorf("the positive twin: %d %v", status, err)
	}
}

// INV-20: without authority nothing begins and what is open ends, as a break and not
// as a whole answer; after it came back, another may begin. Close is for good.
func TestFetchEndsWithAuthority(t *testing.T) {
	gone := make(chan struct{}, 2)
	r, door := doorOf(t, func(w http.ResponseWriter, in *http.Request) {
		_, _ = io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		if in.Header.Get(protocol.EgressTarget) == "/slow" {
			<-in.Context().Done()
			gone <- struct{}{}
		}
	})
	for _, c := range []struct {
		name   string
		take   func()
		status int
		again  func()
	}{
		{"suspended", r.Suspend, protocol.Codes[protocol.CodeLeaseExpired].HTTP, r.Resume},
		{"closed", func() { r.Close(protocol.Errorf(protocol.CodeCancelled, "it is over")) }, protocol.Codes[protocol.CodeCancelled].HTTP, nil},
	} {
		res, err := http.Get(door.URL + "/slow")
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 5)
		if _, err := io.ReadFull(res.Body, first); err != nil {
			t.Fatal(err)
		}
		c.take()
		<-gone
		if rest, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("%s: it ended as if it were whole: %q", c.name, rest)
		}
		res.Body.Close()
		if status, text, _ := get(t, door.URL+"/x", nil); status != c.status {
			t.Errorf("%s: another was answered %d %q", c.name, status, text)
		}
		if c.again != nil {
			c.again()
			if status, _, err := get(t, door.URL+"/x", nil); status != 200 || err != nil {
				t.Errorf("%s, and back: %d %v", c.name, status, err)
			}
		}
	}
	r2, door2 := doorOf(t, func(http.ResponseWriter, *http.Request) {})
	r2.now = 15 * time.Second
	if status, text, _ := get(t, door2.URL+"/x", nil); status != protocol.Codes[protocol.CodeLeaseExpired].HTTP {
		t.Errorf("without a lease: %d %q", status, text)
	}
}

// So many are open at once, and a request that its asker gave up is not among them.
func TestFetchesAreBounded(t *testing.T) {
	began, gone := make(chan struct{}, maxFetches), make(chan struct{}, maxFetches)
	_, door := doorOf(t, func(w http.ResponseWriter, in *http.Request) {
		if in.Header.Get(protocol.EgressTarget) != "/slow" {
			return
		}
		w.(http.Flusher).Flush()
		began <- struct{}{}
		<-in.Context().Done()
		gone <- struct{}{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range maxFetches {
		req, err := http.NewRequestWithContext(ctx, "GET", door.URL+"/slow", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		<-began
	}
	if status, text, _ := get(t, door.URL+"/x", nil); status != protocol.Codes[protocol.CodeRateLimited].HTTP {
		t.Errorf("one more: %d %q", status, text)
	}
	cancel()
	for range maxFetches {
		<-gone
	}
	for { // the relay hears of it when it next reads
		status, _, err := get(t, door.URL+"/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		if status == 200 {
			return
		}
	}
}
