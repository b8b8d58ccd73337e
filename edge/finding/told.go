package finding

import (
	"net"
	"net/netip"
)

// ServeOthers is the command that makes a server tell other machines addresses
// that they can dial.
const ServeOthers = "bivouac dev --runner IP:7401 --broker IP:7402, or bivouac-server --advertise-runners HOST:7401 --advertise-broker HOST:7402"

// SelfSigned is the command that makes a certificate of the API for a host, and its
// key, where there is no authority: api.crt is then the file of --ca too.
func SelfSigned(host string) string {
	kind := "DNS"
	if _, err := netip.ParseAddr(host); err == nil {
		kind = "IP"
	}
	if host == "" {
		kind, host = "DNS", "HOST"
	}
	return "openssl req -x509 -newkey rsa:3072 -nodes -days 365 -subj /CN=bivouac -addext subjectAltName=" + kind + ":" + host + " -keyout api.key -out api.crt"
}

// Told says why another machine cannot work with the addresses of runner listener
// and broker that it is told; empty: nothing in them says so. inside: it can on the
// server's own machine.
func Told(runners, broker string) (what string, inside bool) {
	r, b := placeOf(runners), placeOf(broker)
	switch {
	case r == everywhere:
		return "runners are told to dial " + runners + ", which is every address of the server's machine and none that another one can dial", false
	case b == everywhere:
		return "runners are told that the broker is at " + broker + ", which is every address of its machine and none that another one can dial", false
	case r == here && b == here:
		return "runners are told to dial " + runners + ", which only the server's own machine can", true
	case r == here:
		return "runners are told to dial " + runners + ", which only the server's own machine can, and the broker at " + broker, false
	case b == here:
		return "runners are told to dial " + runners + " and the broker at " + broker + ", which is their own machine to them: no turn in a sandbox reaches a model", false
	}
	return "", true
}

// Loopback says whether an address means its own machine to whoever dials it.
func Loopback(address string) bool { return placeOf(address) == here }

type place int

const (
	somewhere place = iota
	here
	everywhere
)

func placeOf(address string) place {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return somewhere // said elsewhere
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "", err == nil && ip.IsUnspecified():
		return everywhere
	case host == "localhost", err == nil && ip.Unmap().IsLoopback():
		return here
	}
	return somewhere
}
