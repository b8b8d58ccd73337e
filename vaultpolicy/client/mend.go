package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
)

// Mend is what a person does about a request that was not answered, or not with what
// was asked for. Empty: only who asked knows, as with a right that is missing.
func Mend(err error) string {
	switch KindOf(err) {
	case Sealed:
		return "vault operator unseal  (on the server's machine, by whoever holds the unseal keys)"
	case Limited:
		return "try again in a moment; a rate limit of the server is met: vault list sys/quotas/rate-limit"
	case NoNamespace:
		return "bao namespace list, bao namespace create NAME; or name another in the vault block of broker.hcl"
	case Away:
		return mendWay(err)
	}
	return ""
}

// mendWay is about the way to the server.
func mendWay(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var dns *net.DNSError
	switch {
	case errors.As(err, &unknown):
		return "name the file of its authority: VAULT_CACERT=CA.pem, or ca_file in the vault block of broker.hcl; nothing is sent to a server that cannot be proven, VAULT_SKIP_VERIFY does not count"
	case errors.As(err, &name):
		return "use a name that its certificate has, in VAULT_ADDR or address in the vault block of broker.hcl"
	case errors.As(err, &certificate):
		return "renew the server's certificate"
	case errors.As(err, &record), strings.Contains(err.Error(), http.ErrSchemeMismatch.Error()):
		return "it speaks plain HTTP: an address on this machine may begin with http://, any other server needs TLS in its listener"
	case strings.Contains(err.Error(), wantsTLS):
		return "begin its address with https://, in VAULT_ADDR or address in the vault block of broker.hcl"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "start the server, or name another address: VAULT_ADDR, or address in the vault block of broker.hcl"
	case errors.As(err, &dns):
		return "name another address, or mend the name service: VAULT_ADDR, or address in the vault block of broker.hcl"
	case errors.Is(err, context.DeadlineExceeded):
		return "look why it hangs: vault status; an audit device that blocks stops every request; or a firewall drops what goes there"
	}
	return "vault status  (from this machine; what it says is what the broker sees)"
}

// wantsTLS is what an HTTPS server answers to plain HTTP.
const wantsTLS = "HTTP request to an HTTPS server"
