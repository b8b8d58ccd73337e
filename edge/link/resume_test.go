package link_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"

	"bivouac/edge/link"
)

// Every connection is a whole handshake: nothing that was seen on the wire, and no
// ticket, opens another one. With neither resumption nor early data there is
// nothing to replay.
func TestNoConnectionIsResumed(t *testing.T) {
	f := newFixture(t)
	for proto, network := range map[string]link.Network{
		"HTTP/3.0": {},
		"HTTP/2.0": {ListenPacket: func(context.Context) (net.PacketConn, error) { return nil, net.ErrClosed }},
	} {
		f.patient = proto == "HTTP/3.0"
		cfg := f.config()
		cfg.Network = network
		c := dial(t, cfg)
		for range 3 {
			if got, err := get(c, "/resumed"); err != nil || got != proto+" false" {
				t.Errorf("%s: %q, %v", proto, got, err)
			}
			c.Drop()
		}
	}
	// Not for a client that would like to, either.
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{*f.runner.Load()}, InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(8)}}}
	for range 3 {
		res, err := web.Get("https://" + f.address + "/resumed")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(body) != "HTTP/2.0 false" {
			t.Errorf("a client with tickets: %q, %v", body, err)
		}
	}
}
