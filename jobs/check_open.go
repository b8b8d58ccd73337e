package jobs

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"bivouac/edge/finding"
)

// examineOpen tries what Nomad lets anybody do, without a token: nothing is the default,
// and the policy that is named anonymous widens it.
func (c Config) examineOpen(ctx context.Context, r *finding.Report, sites []Site) {
	c.TokenFile, c.Token = "", ""
	var open []string
	err := c.Ask(func(n *Nomad) error {
		if _, _, err := n.api.Nodes().List(query(ctx, "")); err == nil {
			open = append(open, "nodes")
		}
		for _, s := range sites {
			if _, _, err := n.api.Jobs().List(query(ctx, s.Namespace)); err == nil {
				open = append(open, "jobs of namespace "+s.Namespace)
			}
		}
		return nil
	})
	switch {
	case err != nil || ctx.Err() != nil: // what does not answer was said of others
	case len(open) > 0:
		r.Warn("nomad.anonymous", "without a token anybody reads "+strings.Join(open, " and "), "whoever reaches Nomad sees where agents run, and what else the policy allows may be done",
			"nomad acl policy info anonymous, then: nomad acl policy delete anonymous")
	default:
		r.Fine("nomad.anonymous", "without a token nothing is answered of nodes and jobs")
	}
}

// examineCertificate says when that of the API ends. state is nil without TLS.
func examineCertificate(r *finding.Report, state *tls.ConnectionState) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return
	}
	const soon = 7 * 24 * time.Hour
	ends := state.PeerCertificates[0].NotAfter
	if time.Until(ends) < soon {
		r.Warn("nomad.tls", "the certificate of its API ends "+ends.UTC().Format(time.RFC3339), "no machine enrols then, and nodes are not read; nothing that runs is touched",
			"write a new one into cert_file of Nomad's tls block, then: kill -HUP of its agent")
		return
	}
	r.Fine("nomad.tls", "the certificate of its API holds until %s", ends.UTC().Format(time.RFC3339))
}

// Bytes that begin a connection to the RPC port.
const (
	rpcPlain = 0x01
	rpcTLS   = 0x04
)

// rpcWait is how long a server may take to close a connection that it does not want.
const rpcWait = 2 * time.Second

// examineRPC tries the ports of servers as somebody without a certificate.
func (n *Nomad) examineRPC(ctx context.Context, r *finding.Report) {
	members, err := n.api.Agent().Members()
	if err != nil {
		return // the version says so
	}
	tried := 0
	for _, m := range members.Members {
		at := net.JoinHostPort(cmp.Or(m.Tags["rpc_addr"], m.Addr), m.Tags["port"])
		problem, err := openRPC(ctx, at)
		switch {
		case err != nil:
			continue
		case problem != "":
			r.Bad("nomad.rpc", fmt.Sprintf("server %s takes connections at %s %s", m.Name, at, problem), "whoever reaches the port acts as a server: it reads the keys that sign identities",
				"tls { rpc = true  verify_server_hostname = true … } on all servers and clients")
			return
		}
		tried++
	}
	switch {
	case ctx.Err() != nil:
	case tried == 0:
		r.Fine("nomad.rpc", "the ports of servers are not reached from here")
	default:
		r.Fine("nomad.rpc", "%d server(s) take no connection without a certificate; whether they look at the role in it, bivouac nomad check says", tried)
	}
}

// openRPC says how a server takes somebody without a certificate; empty: not at all.
func openRPC(ctx context.Context, address string) (problem string, err error) {
	kept, err := keeps(ctx, address, false)
	if err != nil || kept {
		return "without TLS", err
	}
	if kept, err = keeps(ctx, address, true); err != nil || kept {
		return "without a certificate", err
	}
	return "", nil
}

// keeps reports that a connection without a certificate of ours is kept. Nothing is asked
// over it, and who the server is does not matter.
func keeps(ctx context.Context, address string, secure bool) (bool, error) {
	dialer := net.Dialer{Timeout: rpcWait}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(rpcWait)); err != nil {
		return false, err
	}
	if secure {
		if _, err := conn.Write([]byte{rpcTLS}); err != nil {
			return false, nil
		}
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) // looked at, not trusted
	}
	if _, err := conn.Write([]byte{rpcPlain}); err != nil {
		return false, nil
	}
	_, err = conn.Read(make([]byte, 1))
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded), nil
}
