package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"bivouac/edge/identity"
	"bivouac/edge/identity/identitytest"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/apiv1/apiv1connect"
)

// A server that cannot be called says why, by what it is: the port of machines, plain
// HTTP, a certificate of an authority that nobody here knows, or none at all. With the
// authority the same server answers.
func TestUnreachableSaysWhatToDo(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(apiv1connect.NewPrincipalServiceHandler(&server{whoami: func(int) error { return nil }}))
	plain := httptest.NewServer(mux)
	own, machines := httptest.NewUnstartedServer(mux), httptest.NewUnstartedServer(mux)
	quiet := log.New(io.Discard, "", 0)
	own.Config.ErrorLog, machines.Config.ErrorLog = quiet, quiet
	own.StartTLS()
	leaf := identitytest.NewRoot().Certify(identitytest.NewKey(), identity.RoleServer, "rep_1", "", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	machines.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	machines.StartTLS()
	gone := httptest.NewServer(mux)
	for _, s := range []*httptest.Server{plain, own, machines} {
		t.Cleanup(s.Close)
	}
	gone.Close()
	pool := x509.NewCertPool()
	pool.AddCert(own.Certificate())
	for name, c := range map[string]struct {
		url  string
		tls  *tls.Config
		code protocol.Code
		want string
	}{
		"known authority":   {own.URL, &tls.Config{RootCAs: pool}, "", ""},
		"unknown authority": {own.URL, nil, protocol.CodeFailedPrecondition, "bivouac login " + own.URL + " --token-file FILE --ca FILE"},
		"another name":      {strings.Replace(own.URL, "127.0.0.1", "localhost", 1), &tls.Config{RootCAs: pool}, protocol.CodeFailedPrecondition, "is not for the name localhost"},
		"machines' port":    {machines.URL, nil, protocol.CodeInvalidArgument, "log in at http://127.0.0.1:7400"},
		"plain HTTP":        {strings.Replace(plain.URL, "http:", "https:", 1), nil, protocol.CodeInvalidArgument, "speaks plain HTTP"},
		"nobody":            {gone.URL, nil, protocol.CodeUnavailable, "start it with bivouac dev or bivouac-server"},
		"no name":           {"https://nohost.invalid:7400", nil, protocol.CodeUnavailable, "getent hosts nohost.invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := New(Config{URL: c.url, TLS: c.tls, Retries: -1})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			_, err = a.Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{})
			switch {
			case c.code == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.code != "" && (protocol.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%s: %v, want %s %q", protocol.CodeOf(err), err, c.code, c.want)
			}
		})
	}
}

// What never got as far as the server is said as that, whether it was refused or took
// too long; what it may have read is not.
func TestNeverSent(t *testing.T) {
	late := &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"name":   {connect.NewError(connect.CodeDeadlineExceeded, &url.Error{Op: "Post", URL: "https://x", Err: &net.OpError{Op: "dial", Err: &net.DNSError{Err: "i/o timeout", IsTimeout: true}}}), true},
		"port":   {connect.NewError(connect.CodeDeadlineExceeded, late), true},
		"answer": {connect.NewError(connect.CodeDeadlineExceeded, &net.OpError{Op: "read", Err: context.DeadlineExceeded}), false},
	} {
		if got := neverSent(c.err); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		var e *protocol.Error
		if err := (caller{base: "https://203.0.113.1:7400"}).coded(c.err); !errors.As(err, &e) || (e.Code == protocol.CodeUnavailable) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A packet filter is told from a server that does not run: by the port that it drops, and
// without another try, which would meet the same filter. What refused is tried again.
func TestPacketFilter(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		tries int
		want  string
	}{
		"dropped": {&net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}, 1, "Open TCP port 7400 from here to the server; bivouac doctor"},
		"refused": {&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}, 3, "or a firewall in between rejects TCP port 7400"},
	} {
		t.Run(name, func(t *testing.T) {
			tries := 0
			a, err := New(Config{URL: "https://203.0.113.1:7400", Retries: 2, HTTP: &http.Client{Transport: &http.Transport{
				DialContext: func(context.Context, string, string) (net.Conn, error) { tries++; return nil, c.err },
			}}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = a.Principals.WhoAmI(t.Context(), &apiv1.WhoAmIRequest{})
			if protocol.CodeOf(err) != protocol.CodeUnavailable || !strings.Contains(err.Error(), c.want) || tries != c.tries {
				t.Errorf("%d tries: %v", tries, err)
			}
		})
	}
}

// Who leaves out a part of an address is told the whole one.
func TestAddressThatWasMeant(t *testing.T) {
	for given, want := range map[string]string{
		"127.0.0.1:7400":        "http://127.0.0.1:7400",
		"localhost":             "http://localhost:7400",
		"203.0.113.10:7400":     "https://203.0.113.10:7400",
		"203.0.113.10":          "https://203.0.113.10:7400",
		"bivouac.example.org/x": "https://bivouac.example.org:7400",
		"[2001:db8::1]":         "https://[2001:db8::1]:7400",
		"ftp://one.example:1":   "https://one.example:1",
		"":                      "http://127.0.0.1:7400",
		"a b":                   "http://127.0.0.1:7400",
	} {
		_, err := New(Config{URL: given})
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), "write it as "+want+",") {
			t.Errorf("%q: %v, want %s", given, err, want)
		}
		if a, err := New(Config{URL: want}); err != nil {
			t.Errorf("%s: %v", want, err)
		} else {
			a.Close()
		}
	}
}

// Where nothing answers, a port that is usually another one is pointed out.
func TestUnreachableKnowsThePorts(t *testing.T) {
	for base, want := range map[string]string{
		"http://127.0.0.1:7401":    "people at http://127.0.0.1:7400",
		"https://203.0.113.1:7402": "people at https://203.0.113.1:7400",
		"https://203.0.113.1:7400": "a bivouac dev answers people on its own machine alone",
		"http://127.0.0.1:7400":    "bivouac login",
	} {
		code, text := caller{base: base}.unreachable(protocol.Errorf(protocol.CodeUnavailable, "refused"), "refused")
		if code != protocol.CodeUnavailable || !strings.Contains(text, want) {
			t.Errorf("%s: %s %s, want %q", base, code, text, want)
		}
		if base == "http://127.0.0.1:7400" && (strings.Contains(text, "machines connect") || strings.Contains(text, "alone")) {
			t.Errorf("%s: %s", base, text)
		}
	}
}
