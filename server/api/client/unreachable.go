package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
)

// Ports where servers listen by default.
const (
	apiPort    = "7400"
	runnerPort = "7401"
	brokerPort = "7402"
)

// unreachable says why a call did not arrive, and what mends it. said is the words of
// the transport. What only a person can mend is not tried again.
func (c caller) unreachable(err error, said string) (protocol.Code, string) {
	text := "the server at " + c.base + " cannot be reached (" + said + "); start it with bivouac dev or bivouac-server, or log in to another one with bivouac login URL --token-file FILE"
	u, bad := url.Parse(c.base)
	if bad != nil {
		return protocol.CodeUnavailable, text // New has read it before
	}
	people := "https://" + net.JoinHostPort(u.Hostname(), apiPort)
	if loopback(u.Hostname()) {
		people = "http://" + net.JoinHostPort(u.Hostname(), apiPort)
	}
	var dial *net.OpError
	switch leaf := leafOf(err); {
	case forMachines(leaf):
		return protocol.CodeInvalidArgument, c.base + " is where machines connect, not people: log in at " + people + ", or where the server's `public` address says (" + said + ")"
	case errors.Is(err, http.ErrSchemeMismatch):
		return protocol.CodeInvalidArgument, c.base + " speaks plain HTTP, which a server does for its own machine alone, as bivouac dev: " +
			"log in there at http://127.0.0.1:" + u.Port() + ", or run bivouac-server with --tls-cert and --tls-key for other machines"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return protocol.CodeFailedPrecondition, "nobody whom this machine trusts signed the certificate of " + c.base +
			": give the file of its authority, which the server's admin has: bivouac login " + c.base + " --token-file FILE --ca FILE"
	case errors.As(err, new(x509.HostnameError)):
		return protocol.CodeFailedPrecondition, "the certificate of " + c.base + " is not for the name " + u.Hostname() + " (" + said + "): log in under a name that it is for, or make one for this, where the server runs, and restart it: " + finding.SelfSigned(u.Hostname())
	case leaf != nil:
		return protocol.CodeFailedPrecondition, "the certificate of " + c.base + " is not good for it (" + said + "): log in under a name that it is for, or have the server's admin replace it"
	case errors.As(err, new(*net.DNSError)):
		return protocol.CodeUnavailable, "the name " + u.Hostname() + " is not found from here (" + said + "): see getent hosts " + u.Hostname() + "; where it is mistyped, or another server is meant, bivouac login https://HOST:" + apiPort + " --token-file FILE"
	case errors.As(err, &dial) && silent(err):
		return protocol.CodeUnavailable, "nothing answers at " + u.Host + " within " + dialTimeout.String() + " (" + dial.Error() + "): a firewall, VPN or provider drops TCP port " + portOf(u) +
			", or the address is another machine's. Open TCP port " + portOf(u) + " from here to the server; bivouac doctor looks from here, bivouac-server doctor on its machine"
	case u.Port() == runnerPort || u.Port() == brokerPort:
		return protocol.CodeUnavailable, text + "; unless the server says otherwise, machines connect at port " + u.Port() + ", and people at " + people
	}
	if !loopback(u.Hostname()) {
		if errors.Is(err, syscall.ECONNREFUSED) {
			text += "; or a firewall in between rejects TCP port " + portOf(u) + ": open it"
		}
		text += "; a bivouac dev answers people on its own machine alone, at http://127.0.0.1:" + apiPort
	}
	return protocol.CodeUnavailable, text
}

// dialTimeout bounds one try to connect. A port that is closed refuses at once, so
// whoever waits longer waits for a packet filter.
const dialTimeout = 4 * time.Second

// silent reports a peer that did not even refuse: another try meets the same filter.
func silent(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" && dial.Timeout() && !errors.As(err, new(*net.DNSError))
}

func portOf(u *url.URL) string {
	if u.Port() != "" {
		return u.Port()
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// neverSent reports a call that did not get as far as the server: no name, no way.
func neverSent(err error) bool {
	var dial *net.OpError
	return errors.As(err, new(*net.DNSError)) || errors.As(err, &dial) && dial.Op == "dial"
}

// leafOf is the certificate that a handshake failed over; nil when that was not why.
func leafOf(err error) *x509.Certificate {
	var bad *tls.CertificateVerificationError
	if !errors.As(err, &bad) || len(bad.UnverifiedCertificates) == 0 {
		return nil
	}
	return bad.UnverifiedCertificates[0]
}

// forMachines reports a certificate of Bivouac's own, which runners and brokers know
// each other by.
func forMachines(leaf *x509.Certificate) bool {
	if leaf == nil {
		return false
	}
	for _, u := range leaf.URIs {
		if u.Scheme == "bivouac" {
			return true
		}
	}
	return false
}
