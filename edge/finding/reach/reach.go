// Package reach finds out whether a peer of the link can be reached, over each
// transport alone, and names the port that is in the way. It guarantees that
// nothing is asked of the peer but its time, and refuses to judge anything else.
package reach

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"bivouac/edge/finding"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
)

// Peer to be reached.
type Peer struct {
	// Check names the findings: "server" gives server.udp and server.tcp.
	Check string
	// Who it is, for people, such as "the server".
	Who  string
	Link link.Config
	// Start is the command that starts it, where it may not run.
	Start string
	// Elsewhere says that Address is not a person's to change by a flag, and where
	// it comes from.
	Elsewhere string
}

// Check tries both transports and reports them; it returns whether one works.
func Check(ctx context.Context, r *finding.Report, p Peer) bool {
	address := p.Link.Address
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		r.Bad(p.Check+".address", address+" is no address of "+p.Who+": host:port is", "", p.Elsewhere)
		return false
	}
	if err := resolves(ctx, p.Link.Network, host); err != nil {
		r.Bad(p.Check+".name", "the name "+host+" cannot be resolved: "+err.Error(), p.Who+" is reached by it", "getent hosts "+host+"; "+p.Elsewhere)
		return false
	}
	paths, err := link.Reach(ctx, p.Link)
	if r.Err(p.Check+".link", err, p.Who+" cannot be dialled", p.Elsewhere) {
		return false
	}
	udp, tcp := paths[0], paths[1]
	switch {
	case udp.Err == nil && tcp.Err == nil:
		r.Fine(p.Check, "%s answers over UDP and TCP (%s, %s)", address, round(udp.Took), round(tcp.Took))
	case udp.Err == nil:
		r.Warn(p.Check+".tcp", "TCP to "+address+" does not work: "+plainly(tcp.Err), "the link has nothing to fall back to where a network eats UDP",
			open("TCP", port, p.Who))
	case tcp.Err == nil:
		r.Warn(p.Check+".udp", "UDP to "+address+" does not work: "+plainly(udp.Err), "the link runs over TCP: one lost packet holds up all streams",
			open("UDP", port, p.Who))
	default:
		none(r, p, port, udp.Err, tcp.Err)
	}
	clock(r, p.Who, paths)
	return udp.Err == nil || tcp.Err == nil
}

// resolves asks the machine's own resolver, where its own network is used.
func resolves(ctx context.Context, n link.Network, host string) error {
	if n.ResolveUDP != nil || n.DialTCP != nil {
		return nil
	}
	_, err := net.DefaultResolver.LookupHost(ctx, host)
	return err
}

// none says why neither transport works: the wrong peer, no peer, or a wall.
func none(r *finding.Report, p Peer, port string, udp, tcp error) {
	address := p.Link.Address
	for _, err := range []error{tcp, udp} {
		if link.OutOfDate(err) {
			r.Bad(p.Check+".trust", err.Error(), "what cannot be proven is not believed", "timedatectl set-ntp true")
			return
		}
		if protocol.CodeOf(err) == protocol.CodeUnauthenticated {
			r.Bad(p.Check+".trust", "at "+address+" somebody else answers: "+err.Error(), "only "+p.Who+" of the pinned root is spoken to", p.Elsewhere)
			return
		}
	}
	if errors.Is(tcp, syscall.ECONNREFUSED) {
		r.Bad(p.Check, finding.Refused(address), p.Who+" is needed for all work", finding.MendRefused(address, p.Start))
		return
	}
	r.Bad(p.Check, "port "+port+" of "+address+" is blocked for UDP ("+plainly(udp)+") and for TCP ("+plainly(tcp)+")", p.Who+" is needed for all work",
		open("TCP, and better UDP too,", port, p.Who)+"; or start it: "+p.Start)
}

func open(transport, port, who string) string {
	return "open port " + port + " for " + transport + " from here to " + who + " (firewall, NAT or provider)"
}

func plainly(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	}
	return err.Error()
}

func clock(r *finding.Report, who string, paths [2]link.Path) {
	for _, p := range paths {
		if p.Err == nil && !p.Date.IsZero() {
			r.Clock(who, p.Date, time.Now(), p.Took)
			return
		}
	}
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
