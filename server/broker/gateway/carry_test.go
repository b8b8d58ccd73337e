package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"bivouac/edge/protocol"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/broker/secret"
)

// carried is a destination whose credential is issued.
func carried(t *testing.T, base string, client *http.Client) *Destination {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	if client == nil {
		if client, err = egress.NewClient(egress.Config{Name: "partner", Base: u, AllowPrivate: true}); err != nil {
			t.Fatal(err)
		}
	}
	d := New(Config{Name: "partner", Base: u, Client: client, Retries: 2, Issued: map[string][]string{"signature": {"Signature"}}})
	t.Cleanup(d.Close)
	return d
}

func signedTool() *brokerv1.HttpTool {
	return &brokerv1.HttpTool{Ref: "http:order", Destination: "partner", Method: "POST", Path: "/order", Body: []string{"n"}, Credential: "signature"}
}

// A carrier puts its credential into what leaves, body and all; without one, or where
// it fails, nothing leaves, and it is known that nothing did.
func TestCarrier(t *testing.T) {
	var got []*http.Request
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got = append(got, r) }))
	t.Cleanup(upstream.Close)
	d := carried(t, upstream.URL, nil)
	send := func(p Pass) (*Answer, error) {
		t.Helper()
		r, err := d.Prepare(Call{Tool: signedTool(), Arguments: []byte(`{"n":7}`)})
		if err != nil {
			t.Fatal(err)
		}
		if w := r.Wire(); len(w.Sealed) != 1 || w.Sealed[0] != "Signature" {
			t.Errorf("paths see the headers %v", w.Sealed)
		}
		return r.Send(t.Context(), p)
	}
	body := ""
	if a, err := send(Pass{Carrier: Carrier{PutFunc: func(_ context.Context, r *http.Request) error {
		in, err := r.GetBody()
		if err != nil {
			return err
		}
		b, err := io.ReadAll(in)
		body = string(b)
		r.Header.Set("Signature", "mine")
		return err
	}}}); err != nil || a.Status != 200 || len(got) != 1 || got[0].Header.Get("Signature") != "mine" || body != `{"n":7}` {
		t.Fatalf("%v %v %q", a, err, body)
	}
	refused := protocol.Errorf(protocol.CodePermissionDenied, "the grant ended")
	v, err := secret.New("a-value-0123456789")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		pass Pass
		want protocol.Code
	}{
		"nobody carries it":  {Pass{}, protocol.CodePolicyDenied},
		"it is refused":      {Pass{Carrier: Carrier{PutFunc: func(context.Context, *http.Request) error { return refused }}}, protocol.CodePermissionDenied},
		"a value in between": {Pass{Credential: v, Carrier: Carrier{PutFunc: func(context.Context, *http.Request) error { return nil }}}, protocol.CodePolicyDenied},
	} {
		var never *NotSent
		if _, err := send(c.pass); !errors.As(err, &never) || protocol.CodeOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(got) != 1 {
		t.Errorf("%d requests were sent", len(got))
	}
	other := signedTool()
	other.Credential = "weather-key"
	if err := d.Admits(other); protocol.CodeOf(err) != protocol.CodePolicyDenied {
		t.Errorf("a credential of nobody's: %v", err)
	}
	keyed := signedTool()
	keyed.IdempotencyHeader = "signature"
	if _, err := d.Prepare(Call{Tool: keyed, Arguments: []byte(`{"n":7}`), IdempotencyKey: "k"}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("a key in the header of the credential: %v", err)
	}
}

// certificate of a client, signed by itself.
func certificate(t *testing.T) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "agent"}, NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		&x509.Certificate{Subject: pkix.Name{CommonName: "agent"}}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// An upstream that takes the certificate answers; one that does not does nothing, in
// either version of TLS. That is known where it says so in the handshake; with 1.3 it
// says so afterwards, when the request may have left already, and is taken for proof only
// where it had not. INV-5.
func TestCertificateIsRefused(t *testing.T) {
	mine, other := certificate(t), certificate(t)
	for version, name := range map[uint16]string{tls.VersionTLS12: "TLS 1.2", tls.VersionTLS13: "TLS 1.3"} {
		served := 0
		upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { served++ }))
		pool := x509.NewCertPool()
		pool.AddCert(mine.Leaf)
		upstream.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: version, MaxVersion: version}
		upstream.Config.ErrorLog = log.New(io.Discard, "", 0)
		upstream.StartTLS()
		t.Cleanup(upstream.Close)
		base, err := url.Parse(upstream.URL)
		if err != nil {
			t.Fatal(err)
		}
		send := func(c *tls.Certificate) error {
			h, err := egress.NewClient(egress.Config{Name: "partner", Base: base, AllowPrivate: true, Certificate: c, CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: upstream.Certificate().Raw})})
			if err != nil {
				t.Fatal(err)
			}
			r, err := carried(t, upstream.URL, nil).Prepare(Call{Tool: signedTool(), Arguments: []byte(`{"n":7}`)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Send(t.Context(), Pass{Carrier: Carrier{Client: h, PutFunc: func(context.Context, *http.Request) error { return nil }}})
			return err
		}
		if err := send(mine); err != nil || served != 1 {
			t.Fatalf("%s: %v", name, err)
		}
		var never *NotSent
		err = send(other)
		if served != 1 || err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v, served %d", name, err, served)
		}
		if sure := errors.As(err, &never); !sure && (version == tls.VersionTLS12 || protocol.CodeOf(err) != protocol.CodeOutcomeUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// carriedTrip is a client's way to an upstream.
type carriedTrip func(*http.Request) (*http.Response, error)

func (f carriedTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A connection that ends for the certificate after the request was done is no proof that
// it was not; one that ends so before anything was written is. INV-5.
func TestCertificateIsRefusedAfterTheEffect(t *testing.T) {
	for name, tc := range map[string]struct {
		wrap func(error) error
		done int
		want protocol.Code
		sure bool
	}{
		"after":  {func(err error) error { return err }, 1, protocol.CodeOutcomeUnknown, false},
		"before": {func(err error) error { return &egress.Refused{Err: err} }, 0, protocol.CodeFailedPrecondition, true},
	} {
		for _, alert := range []tls.AlertError{42, 45, 48, 49, 116} {
			done := 0
			client := &http.Client{Transport: carriedTrip(func(r *http.Request) (*http.Response, error) {
				done += tc.done
				return nil, tc.wrap(&net.OpError{Op: "remote error", Err: alert})
			})}
			r, err := carried(t, "https://partner.example", nil).Prepare(Call{Tool: signedTool(), Arguments: []byte(`{"n":7}`)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Send(t.Context(), Pass{Carrier: Carrier{Client: client, PutFunc: func(context.Context, *http.Request) error { return nil }}})
			var never *NotSent
			if errors.As(err, &never) != tc.sure || protocol.CodeOf(err) != tc.want || done != tc.done {
				t.Errorf("%s, alert %d: %v, done %d times", name, alert, err, done)
			}
		}
	}
}
