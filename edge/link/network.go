package link

import (
	"context"
	"net"
	"net/netip"
)

// Network is where sockets come from. Nil members mean the machine's own.
type Network struct {
	// ListenPacket opens the local end of one QUIC connection.
	ListenPacket func(ctx context.Context) (net.PacketConn, error)
	// DialTCP opens one stream to address.
	DialTCP func(ctx context.Context, address string) (net.Conn, error)
	// ResolveUDP finds the datagram address of a host:port.
	ResolveUDP func(ctx context.Context, address string) (net.Addr, error)
}

func (n Network) withDefaults() Network {
	if n.ListenPacket == nil {
		n.ListenPacket = func(ctx context.Context) (net.PacketConn, error) {
			return (&net.ListenConfig{}).ListenPacket(ctx, "udp", ":0")
		}
	}
	if n.DialTCP == nil {
		n.DialTCP = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}
	if n.ResolveUDP == nil {
		n.ResolveUDP = resolveUDP
	}
	return n
}

func resolveUDP(ctx context.Context, address string) (net.Addr, error) {
	if ap, err := netip.ParseAddrPort(address); err == nil {
		// The 16-byte form, so that a literal compares equal to net.ParseIP's.
		return &net.UDPAddr{IP: net.ParseIP(ap.Addr().WithZone("").String()), Port: int(ap.Port()), Zone: ap.Addr().Zone()}, nil
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "udp", service)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, err
	}
	best := ips[0]
	for _, ip := range ips {
		if ip.IP.To4() != nil {
			best = ip
			break
		}
	}
	return &net.UDPAddr{IP: best.IP, Zone: best.Zone, Port: port}, nil
}
