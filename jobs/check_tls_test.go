package jobs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac/edge/finding"
	"bivouac/jobs"
	"bivouac/jobs/jobstest"
)

// findings are the server's own, each check's worst.
func findings(t *testing.T, c jobs.Config) map[string]finding.Finding {
	t.Helper()
	r := finding.From("server")
	c.Examine(t.Context(), r)
	all := map[string]finding.Finding{}
	for _, f := range r.All {
		if all[f.Check].Level != finding.Problem {
			all[f.Check] = f
		}
	}
	return all
}

// certificate of a Nomad's API, that ends then, and the file of its authority.
func certificate(t *testing.T, ends time.Time) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	spec := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: ends,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, spec, spec, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// A certificate that is about to end is found before it does, and one that has ended is
// why nothing is answered.
func TestCheckCertificate(t *testing.T) {
	for _, c := range []struct {
		name  string
		left  time.Duration
		check string
		level finding.Level
		says  string
	}{
		{"long", 60 * 24 * time.Hour, "nomad.tls", finding.OK, "holds until"},
		{"about to end", 24 * time.Hour, "nomad.tls", finding.Warning, "kill -HUP"},
		{"ended", -time.Minute, "nomad", finding.Problem, "expired"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cert, ca := certificate(t, time.Now().Add(c.left))
			s := httptest.NewUnstartedServer(jobstest.NewSigner(t))
			s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
			s.StartTLS()
			defer s.Close()
			f := findings(t, jobs.Config{Address: s.URL, CAFile: ca})[c.check]
			if f.Level != c.level || !strings.Contains(f.What+f.Mend, c.says) {
				t.Errorf("%+v, want %s with %q", f, c.level, c.says)
			}
		})
	}
}
