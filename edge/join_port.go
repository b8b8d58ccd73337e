package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"bivouac/edge/link"
	"bivouac/edge/protocol"
)

// nameTimeout bounds how long a name may take to be resolved.
const nameTimeout = 5 * time.Second

// resolves refuses an address whose name this machine cannot resolve, before anything
// is written: dialled, it would be a server that does not answer.
func resolves(ctx context.Context, n link.Network, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	if n.ResolveUDP != nil {
		_, err = n.ResolveUDP(ctx, address)
	} else {
		_, err = net.DefaultResolver.LookupHost(ctx, host)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument,
			"the name %s cannot be resolved on this machine: %w; see `getent hosts %s`, or write the server's address in place of the name", host, err, host)
	}
	return nil
}

// Where a server's API for people and the broker listen by default.
const (
	apiPort    = "7400"
	brokerPort = "7402"
)

// wrongPort adds to a join that failed what the mistake is likely to be: the port
// of the API, which people know, in place of the one for runners.
func wrongPort(address string, err error) error {
	var e *protocol.Error
	host, port, _ := net.SplitHostPort(address)
	clear := errors.As(err, new(tls.RecordHeaderError))                                                 // something answered, and it speaks no TLS
	broker := port == brokerPort || err != nil && strings.Contains(err.Error(), "the peer is a broker") // by link's own words
	if err == nil || port == DefaultPort || port != apiPort && !broker && !clear {
		return err
	}
	what := "port " + port + " is the API's unless the server says otherwise"
	switch {
	case broker:
		what = "port " + port + " is the broker's"
	case clear:
		what = "what listens on port " + port + " speaks plain HTTP, as the API does"
	}
	code := protocol.CodeOf(err)
	if errors.As(err, &e) && code == protocol.CodeUnavailable {
		code = protocol.CodeInvalidArgument // trying again changes nothing
	}
	return protocol.Errorf(code, "%w; %s: runners join at https://%s, or where the command of `bivouac edge invite` says",
		err, what, net.JoinHostPort(host, DefaultPort))
}
