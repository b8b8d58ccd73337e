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
	"os/exec"
	"path/filepath"
	"strings"
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
}

// A certificate without its key, one that is not there, and one for no name are
// refused with the files' names and the command that makes two that are right: typed,
// it does.
func TestPublicCertificateIsMadeByTheCommandOfItsRefusal(t *testing.T) {
	dir := t.TempDir()
	c := Default()
	c.PublicAddress = "203.0.113.10:7400"
	good, key, _ := certify(t, dir)
	refused := func(name, cert, key string) string {
		t.Helper()
		c.TLSCertFile, c.TLSKeyFile = cert, key
		_, err := loadTLS(c)
		if protocol.CodeOf(err) != protocol.CodeInvalidArgument || !strings.Contains(err.Error(), cert) {
			t.Fatalf("%s: %v", name, err)
		}
		_, command, ok := strings.Cut(err.Error(), "openssl ")
		if !ok {
			t.Fatalf("%s names no command: %v", name, err)
		}
		return command
	}
	command := refused("without its key", good, good)
	refused("not there", filepath.Join(dir, "nothing.crt"), key)
	c.TLSCertFile, c.TLSKeyFile = good, key
	if _, err := loadTLS(c); err != nil {
		t.Errorf("a whole pair: %v", err)
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	openssl := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "openssl", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	openssl("req", "-x509", "-newkey", "rsa:3072", "-nodes", "-days", "1", "-subj", "/CN=203.0.113.10", "-keyout", "bare.key", "-out", "bare.crt")
	if again := refused("for no name", filepath.Join(dir, "bare.crt"), filepath.Join(dir, "bare.key")); again != command {
		t.Errorf("another command: %s", again)
	}
	openssl(strings.Fields(command)...)
	c.TLSCertFile, c.TLSKeyFile = filepath.Join(dir, "api.crt"), filepath.Join(dir, "api.key")
	made, err := loadTLS(c)
	if err != nil {
		t.Fatal(err)
	}
	leaf, roots := made.Certificates[0].Leaf, x509.NewCertPool()
	roots.AddCert(leaf)
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "203.0.113.10", Roots: roots}); err != nil {
		t.Errorf("whoever trusts the file does not believe the server: %v", err)
	}
}
