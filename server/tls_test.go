package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bivouac/edge/protocol"
)

// certify writes a certificate for 127.0.0.1 and its key.
func certify(t *testing.T, dir string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, pool
}

func TestPublicListenerOverTLS(t *testing.T) {
	c := Default()
	var pool *x509.CertPool
	c.TLSCertFile, c.TLSKeyFile, pool = certify(t, t.TempDir())
	conf, err := loadTLS(c)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := publicServer{listener: l, tls: conf, grace: time.Second, log: slog.New(slog.DiscardHandler),
		handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	for want, h2 := range map[string]bool{"HTTP/2.0": true, "HTTP/1.1": false} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: h2}
		res, err := (&http.Client{Transport: tr}).Get("https://" + l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || string(body) != want {
			t.Errorf("%s: %q %v", want, body, err)
		}
		res.Body.Close()
		tr.CloseIdleConnections()
	}
	if res, err := http.Get("http://" + l.Addr().String()); err == nil {
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("clear text was answered: %s", res.Status)
		}
		res.Body.Close()
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("stopped with %v", err)
	}
	c.TLSKeyFile = c.TLSCertFile
	if _, err := loadTLS(c); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("a certificate without its key: %v", err)
	}
}
