package egress

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"bivouac/edge/protocol"
)

func TestClassify(t *testing.T) {
	for text, want := range map[string]Class{
		"93.184.216.34": Public, "2606:2800:220:1::1": Public, "::ffff:93.184.216.34": Public, "64:ff9b::5db8:d822": Public,
		"127.0.0.1": Loopback, "127.8.9.1": Loopback, "::1": Loopback, "::ffff:127.0.0.1": Loopback, "64:ff9b::7f00:1": Loopback, "2002:7f00:1::1": Loopback,
		"10.1.2.3": Private, "172.16.0.1": Private, "192.168.1.1": Private, "100.64.0.1": Private, "fd12::1": Private, "::10.0.0.1": Private,
		"169.254.169.254": LinkLocal, "fe80::1%eth0": LinkLocal, "fd00:ec2::254": LinkLocal, "::ffff:169.254.169.254": LinkLocal, "64:ff9b::a9fe:a9fe": LinkLocal, "100.100.100.200": LinkLocal,
		"0.0.0.0": Reserved, "::": Reserved, "224.0.0.1": Reserved, "ff02::1": Reserved, "240.0.0.1": Reserved, "255.255.255.255": Reserved, "192.0.2.1": Reserved,
	} {
		if got := Classify(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// get asks a destination whose name resolves to addr and whose dials all end at
// one test server.
func get(t *testing.T, cfg Config, addr string, path string) (string, error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "http://other.example/", http.StatusFound)
			return
		}
		io.WriteString(w, "reached as "+r.Host)
	}))
	defer server.Close()
	cfg.Name = "destination x"
	cfg.Network = Network{
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(addr)}, nil
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
		},
	}
	client, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	res, err := client.Get(cfg.Base.String() + path)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.Status + " " + string(b), err
}

// Private, loopback and metadata addresses are refused before a byte is sent;
// the same name with a public address, or the same address allowed, is reached.
func TestAddressesAreChecked(t *testing.T) {
	name, meta := mustURL(t, "http://api.example"), mustURL(t, "http://169.254.169.254")
	for _, tc := range []struct {
		why     string
		base    *url.URL
		addr    string
		private bool
		reached bool
	}{
		{"public", name, "93.184.216.34", false, true},
		{"loopback behind a name", name, "127.0.0.1", false, false},
		{"loopback allowed", name, "127.0.0.1", true, true},
		{"private", name, "10.0.0.7", false, false},
		{"mapped private", name, "::ffff:10.0.0.7", false, false},
		{"metadata behind a name", name, "169.254.169.254", true, false},
		{"metadata literal, not allowed", meta, "", false, false},
		{"metadata literal, allowed", meta, "", true, true},
		{"unspecified", name, "0.0.0.0", true, false},
	} {
		if tc.addr == "" {
			tc.addr = "192.0.2.1" // must not be asked
		}
		got, err := get(t, Config{Base: tc.base, AllowPrivate: tc.private}, tc.addr, "/")
		if tc.reached && (err != nil || !strings.Contains(got, "reached as "+tc.base.Host)) {
			t.Errorf("%s: %q %v", tc.why, got, err)
		}
		var refused *Refused
		if !tc.reached && (!errors.As(err, &refused) || protocol.CodeOf(err) != protocol.CodePolicyDenied) {
			t.Errorf("%s: %q %v", tc.why, got, err)
		}
	}
}

func TestRedirectsComeBackAsTheyAre(t *testing.T) {
	got, err := get(t, Config{Base: mustURL(t, "http://api.example")}, "93.184.216.34", "/redirect")
	if err != nil || !strings.HasPrefix(got, "302") {
		t.Errorf("%q %v", got, err)
	}
}

func TestOnlyTheBaseIsDialled(t *testing.T) {
	client, err := NewClient(Config{Name: "x", Base: mustURL(t, "http://api.example"), AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get("http://127.0.0.1:9/"); protocol.CodeOf(err) != protocol.CodePolicyDenied {
		t.Errorf("%v", err)
	}
}

func TestCheckBase(t *testing.T) {
	for _, bad := range []string{"ftp://x", "https://", "https://u:p@x", "https://x?q=1", "https://x#f", "http://x", "https://x:99999", ":"} {
		if _, err := CheckBase(bad, false); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, good := range []string{"https://x", "https://x:8443/v1/"} {
		if _, err := CheckBase(good, false); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	if _, err := CheckBase("http://127.0.0.1:8080", true); err != nil {
		t.Error(err)
	}
}

// Who ends a mutual connection before the request was written has read none of it, and
// gets none; an end after it says nothing. INV-5.
func TestMutualConnectionEnds(t *testing.T) {
	for _, wrote := range []bool{false, true} {
		ours, theirs := net.Pipe()
		defer ours.Close()
		c := &mutualConn{Conn: ours, name: "partner"}
		if wrote {
			read := make(chan error, 1)
			go func() {
				_, err := theirs.Read(make([]byte, 7))
				read <- err
			}()
			if _, err := c.Write([]byte("request")); err != nil || <-read != nil {
				t.Fatal(err)
			}
		}
		theirs.Close()
		_, err := c.Read(make([]byte, 1))
		var refused *Refused
		if err == nil || errors.As(err, &refused) == wrote {
			t.Errorf("wrote %v: %v", wrote, err)
		}
		if _, err := c.Write([]byte("late")); err == nil || errors.As(err, &refused) == wrote {
			t.Errorf("wrote %v: a late write: %v", wrote, err)
		}
	}
}

// A destination of an authority that is not known here is told with what lets it be
// proven; with its authority it is reached.
func TestUnknownAuthorityIsMended(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of a client that refuses it, as it shall
	defer s.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	for _, known := range []bool{false, true} {
		cfg := Config{Name: "search", Base: mustURL(t, s.URL), AllowPrivate: true}
		if known {
			cfg.CA = ca
		}
		client, err := NewClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Get(s.URL)
		if err == nil {
			res.Body.Close()
		}
		client.CloseIdleConnections()
		for what, err := range map[string]error{"a request": err, "a look": Reach(t.Context(), cfg)} {
			if told := err != nil && strings.Contains(err.Error(), "as ca_file in its block of broker.hcl"); told == known || known && err != nil {
				t.Errorf("%s, known %t: %v", what, known, err)
			}
		}
	}
}
