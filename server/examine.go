package server

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"bivouac/edge/filemode"
	"bivouac/edge/finding"
	"bivouac/edge/finding/reach"
	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/protocol"
	"bivouac/server/brokerlink"
	"bivouac/server/capability"
	"bivouac/server/doctor"
	"bivouac/server/store"
)

// patient is what the doctor of the running server looks at.
func (p *plane) patient(st *store.Store, advertised string) doctor.Config {
	c := doctor.Config{
		Store: st, Broker: p.broker, DataDir: p.cfg.DataDir, Began: began(p.cfg.DataDir),
		Advertised: advertised, AdvertisedBroker: p.cfg.advertisedBroker(), BrokerAddress: p.cfg.BrokerAddress, Network: p.cfg.Network,
	}
	if public, err := loadTLS(p.cfg); err == nil && public != nil {
		c.TLS = public.Certificates[0].Leaf
	}
	return c
}

// began is when a data directory was made: its replica's name never changes.
func began(dir string) time.Time {
	info, err := os.Stat(filepath.Join(dir, replicaFile))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Examine looks at what a server of this configuration would stand on, from the
// machine where it runs, and works while none does: configuration, data
// directory, database, ports, identity, and the way to the broker. It changes
// nothing.
func Examine(ctx context.Context, c Config) *finding.Report {
	r := finding.From("server")
	if err := c.Validate(); err != nil {
		r.Bad("configuration", err.Error(), "the server does not start with it", "edit the file of --config, or give other flags; see bivouac-server --help")
		return r
	}
	of := ""
	if c.Again != "" {
		of = ", as at the last start (" + c.together(c.Again) + " starts it so again)"
	}
	r.Fine("configuration", "API %s, runners %s, broker %s%s", c.PublicAddress, c.RunnerAddress, c.BrokerAddress, of)
	doctor.Told(r, c.advertisedRunner(), c.advertisedBroker())
	if !examineData(r, c) {
		return r
	}
	examineDatabase(ctx, r, c)
	running := examinePorts(ctx, r, c)
	examineTrust(ctx, r, c, running)
	return examineConsul(ctx, c, examineNomad(ctx, c.Nomad, r))
}

func examineData(r *finding.Report, c Config) bool {
	info, err := os.Stat(c.DataDir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		r.Bad("data directory", c.DataDir+" is not there", "a server keeps everything there", "bivouac-server bootstrap --data "+c.DataDir+" --principal NAME --token-file FILE")
		return false
	case err != nil:
		r.Bad("data directory", err.Error(), "a server keeps everything there", "ls -ld "+c.DataDir+"; run this as the user of the server")
		return false
	case !info.IsDir():
		r.Bad("data directory", c.DataDir+" is no directory", "a server keeps everything there", "bivouac-server --data DIR")
		return false
	}
	open := false
	for _, name := range append([]string{""}, secretFiles...) {
		open = r.Err("data directory", filemode.Secret(filepath.Join(c.DataDir, name)), "it holds the server's key and every conversation, and the server does not start", "ls -l "+c.DataDir) || open
	}
	if !open {
		r.Fine("data directory", "%s", c.DataDir)
	}
	r.Disk(finding.Disk{Path: c.DataDir, Holds: "database, blobs and identity", Since: began(c.DataDir), Low: doctor.LowDisk, Mend: "du -xh " + c.DataDir + " | sort -h | tail"})
	return true
}

// examineTimeout bounds the look at a database: a large file takes its time.
const examineTimeout = 20 * time.Second

func examineDatabase(ctx context.Context, r *finding.Report, c Config) {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	cfg, err := c.storeConfig()
	if r.Err("database", err, "a server keeps all state there", "bivouac-server --database DSN, or --dsn-file FILE") {
		return
	}
	db, err := store.Examine(ctx, cfg)
	switch {
	case protocol.CodeOf(err) == protocol.CodeNotFound:
		r.Warn("database", err.Error(), "there is nobody who could log in", "bivouac-server bootstrap --principal NAME --token-file FILE")
	case ctx.Err() != nil:
		r.Warn("database", "it could not be looked at within "+examineTimeout.String(), "a server that starts looks at it too", "run this again while the machine is idle")
	case err != nil:
		r.Bad("database", err.Error(), "the server does not start with it", "restore it: bivouac restore; or run the build that it belongs to")
	case db.Version < db.Newest:
		r.Fine("database", "%s, schema %d, which the next start brings to %d", db.Engine, db.Version, db.Newest)
	default:
		r.Fine("database", "%s, schema %d, whole", db.Engine, db.Version)
	}
}

// examinePorts tells a server that runs from a port that another program has.
func examinePorts(ctx context.Context, r *finding.Report, c Config) (running bool) {
	others := false // a program has the port of the API, perhaps a server
	for _, p := range []struct{ check, network, address, flag string }{
		{"port of the API", "tcp", c.PublicAddress, "--public"},
		{"port for runners", "tcp", c.RunnerAddress, "--runners"},
		{"port for runners", "udp", c.RunnerAddress, "--runners"},
	} {
		free := listenOnce(ctx, p.network, p.address)
		switch {
		case free == nil:
			r.Fine(p.check, "%s %s is free: no server listens there", strings.ToUpper(p.network), p.address)
		case errors.Is(free, syscall.EADDRINUSE):
			running = running || p.network == "tcp" && p.flag == "--runners"
			others = others || p.flag == "--public"
			r.Fine(p.check, "%s %s is in use: by a server, if one runs (the next findings tell)", strings.ToUpper(p.network), p.address)
		default:
			r.Bad(p.check, strings.ToUpper(p.network)+" "+p.address+": "+free.Error(), "the server does not start", "choose another address with "+p.flag)
		}
	}
	if others && !running {
		r.Warn("ports", c.PublicAddress+" is in use, and nobody listens for runners at "+c.RunnerAddress, "a server that runs may have other addresses than those that were looked at",
			"bivouac-server doctor --public HOST:PORT --runners HOST:PORT --broker HOST:PORT  (or --config FILE: what the server was started with)")
	}
	return running
}

func listenOnce(ctx context.Context, network, address string) error {
	var lc net.ListenConfig
	if network == "udp" {
		l, err := lc.ListenPacket(ctx, network, address)
		if err == nil {
			return l.Close()
		}
		return err
	}
	l, err := lc.Listen(ctx, network, address)
	if err == nil {
		return l.Close()
	}
	return err
}

// reachTimeout bounds one transport of one peer.
const reachTimeout = 4 * time.Second

// enrolled says that the broker knows the server of a data directory by its key.
func enrolled(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "server.key"))
	return err == nil
}

// examineTrust tries the way to the broker and, where a port is taken, whether
// it is by this server.
func examineTrust(ctx context.Context, r *finding.Report, c Config, running bool) {
	const enrol = "bivouac-server --broker-code-file FILE  (with a code of bivouac-broker server-code)"
	if !enrolled(c.DataDir) {
		r.Warn("identity", "the server is not enrolled yet", "the broker and the runners do not know it", enrol)
		return
	}
	l, err := brokerlink.Open(brokerlink.Config{Address: c.BrokerAddress, Dir: c.DataDir, Names: c.names(), Network: c.Network, Signer: &capability.Signer{}, Log: c.Log})
	if r.Err("identity", err, "the broker and the runners know the server by it", enrol) {
		return
	}
	root, err := l.Root()
	if r.Err("identity", err, "the broker and the runners know the server by it", enrol) {
		return
	}
	if cert, err := l.Certificate(); err == nil {
		if left := time.Until(cert.Leaf.NotAfter); left <= 0 && !running {
			r.Warn("identity", "the certificate ended "+cert.Leaf.NotAfter.UTC().Format(time.RFC3339), "it is renewed by the enrolled key at the next start", c.together(cmp.Or(c.Again, "bivouac-server, with the flags, or the --config, that it has")))
		} else {
			r.Fine("identity", "enrolled, certificate until %s", cert.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
	}
	to := func(address string, role identity.Role) link.Config {
		return link.Config{Address: address, Trust: link.Trust{Role: role, Root: root}, Certificate: l.Certificate, Network: c.Network, DialTimeout: reachTimeout}
	}
	reach.Check(ctx, r, reach.Peer{Check: "broker", Who: "the broker", Link: to(c.BrokerAddress, identity.RoleBroker), Start: c.together("bivouac-broker run --listen " + c.BrokerAddress + " --server " + c.advertisedRunner() + "  (on its machine)"), Elsewhere: "bivouac-server --broker HOST:PORT"})
	if running {
		reach.Check(ctx, r, reach.Peer{Check: "runners", Who: "the server", Link: to(c.advertisedRunner(), identity.RoleServer), Start: "stop the program that has the port (ss -lntup), or choose another with --runners", Elsewhere: "bivouac-server --runners HOST:PORT"})
	}
}
