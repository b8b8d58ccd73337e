package jobs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// answerTimeout bounds one question without a wait of its own.
const answerTimeout = 10 * time.Second

// tls is made anew for each client, so that renewed files count.
func (c Config) tls() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		if out.RootCAs = x509.NewCertPool(); !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file: %s has no certificate in PEM form", c.CAFile)
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errors.New("cert_file and key_file go together: give both or none")
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

// Client speaks to that Nomad and to no other: it follows no redirect.
func (c Config) Client() (*http.Client, error) { return c.client(answerTimeout) }

// client waits so long for the beginning of an answer; zero: as long as the question's
// context lives.
func (c Config) client(first time.Duration) (*http.Client, error) {
	t, err := c.tls()
	if err != nil {
		return nil, err
	}
	carrier := c.Transport
	if carrier == nil {
		carrier = &http.Transport{TLSClientConfig: t, TLSHandshakeTimeout: answerTimeout, ResponseHeaderTimeout: first, ForceAttemptHTTP2: true}
	}
	return &http.Client{
		Transport:     carrier,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}
