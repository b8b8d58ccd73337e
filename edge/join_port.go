package edge

import (
	"crypto/tls"
	"errors"
	"net"

	"bivouac/edge/protocol"
)

// apiPort is where a server's API for people listens by default.
const apiPort = "7400"

// wrongPort adds to a join that failed what the mistake is likely to be: the port
// of the API, which people know, in place of the one for runners.
func wrongPort(address string, err error) error {
	var e *protocol.Error
	host, port, _ := net.SplitHostPort(address)
	clear := errors.As(err, new(tls.RecordHeaderError)) // something answered, and it speaks no TLS
	if err == nil || port == DefaultPort || port != apiPort && !clear {
		return err
	}
	what := "port " + port + " is the API's unless the server says otherwise"
	if clear {
		what = "what listens on port " + port + " speaks plain HTTP, as the API does"
	}
	code := protocol.CodeOf(err)
	if errors.As(err, &e) && code == protocol.CodeUnavailable {
		code = protocol.CodeInvalidArgument // trying again changes nothing
	}
	return protocol.Errorf(code, "%w; %s: runners join at https://%s, or where the command of `bivouac edge invite` says",
		err, what, net.JoinHostPort(host, DefaultPort))
}
