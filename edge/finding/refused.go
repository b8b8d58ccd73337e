package finding

import "net"

// Refused says of a TCP port that answers with a reset what that can be. On this machine
// nobody is in between.
func Refused(address string) string {
	_, port, _ := net.SplitHostPort(address)
	if Loopback(address) {
		return "nothing listens at " + address + " (TCP port " + port + " refuses)"
	}
	return address + " refuses (TCP port " + port + "): nothing listens there, or a firewall in between rejects it"
}

// MendRefused names both: start is the command that starts the peer.
func MendRefused(address, start string) string {
	_, port, _ := net.SplitHostPort(address)
	if Loopback(address) {
		return start
	}
	return "see on its machine whether it listens: ss -lnt 'sport = :" + port + "'. If it does, open TCP port " + port + " from here to it (a firewall rejects it); if not, start it: " + start
}
