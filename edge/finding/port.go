package finding

import "net"

// PortHolder is the command that shows which program has the port of an address, on
// its machine.
func PortHolder(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return "ss -lntup"
	}
	return "ss -lntup 'sport = :" + port + "'"
}
