package assembly

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"bivouac/consul"
	"bivouac/consul/intentions"
	"bivouac/consul/settings"
	"bivouac/edge/filemode"
	"bivouac/edge/finding"
	"bivouac/edge/identity"
	"bivouac/edge/protocol"
	"bivouac/server/broker"
	"bivouac/server/broker/egress"
	"bivouac/server/broker/keyring"
	"bivouac/vaultpolicy"
)

// Examine looks at what a broker of these options would stand on, from the
// machine where it runs, and works while none does. It changes nothing and uses
// no credential but, with a vault block, the broker's own login there.
func Examine(ctx context.Context, o Options) *finding.Report {
	r := finding.From("broker")
	idle, left := examineKeyring(r, o)
	file := o.Config
	if file == "" {
		file = filepath.Join(o.Data, ConfigFile)
	}
	cfg, err := broker.LoadConfig(file)
	if err != nil {
		r.Add(Validate(file).All...)
		return r
	}
	if o.Listen != "" {
		cfg.Listen = o.Listen
	}
	if len(o.Servers) > 0 {
		cfg.Servers = o.Servers
	}
	of := ""
	if o.Again != "" {
		of = "; its flags are those of the last start (" + o.Again + " starts it so again)"
	}
	r.Fine("configuration", "%s: %d model route(s), %d destination(s), feed of %s, as the next start reads it%s", file, len(cfg.Models), len(cfg.Destinations), strings.Join(cfg.Servers, ", "), of)
	examinePaths(ctx, r, cfg, file, filepath.Join(o.Data, pathsDir))
	broker.ExamineCaps(r, cfg.Caps)
	examineVault(ctx, r, cfg, file, left)
	broker.ExamineWays(ctx, r, cfg, egress.Network{})
	broker.ExamineCommands(ctx, r, cfg, sandboxes(cfg, nil))
	examineListener(ctx, r, cfg.Listen, idle)
	r.Disk(finding.Disk{Path: o.Data, Holds: "keyring and call log", Low: broker.LowDisk, Mend: "du -xh " + o.Data + " | sort -h | tail"})
	return r
}

// examineKeyring opens it, unless a broker that runs has it. It returns whether none
// has: then a broker that listens is another's; and what is in it that a vault block
// leaves unused.
func examineKeyring(r *finding.Report, o Options) (idle bool, left string) {
	const why = "it is the root of trust, and holds every credential"
	for _, name := range []string{"keyring.age", "keyring.key"} {
		path := filepath.Join(o.Data, name)
		_, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			r.Bad("keyring", path+" is not there", why, "--data DIR, where this machine's broker keeps it elsewhere; restore "+name+" from a backup; or, if there never was one, bivouac-broker init --data "+o.Data+"  (a new root: everybody enrols again)")
			return false, ""
		}
		if r.Err("keyring", err, why, "run this as the user of the broker") {
			return false, ""
		}
		if err := filemode.Secret(path); err != nil {
			r.Bad("keyring", path+" is open to other users", why, protocol.Mend(err, ""))
		}
	}
	k, err := keyring.Open(o.Data)
	switch {
	case protocol.CodeOf(err) == protocol.CodeFailedPrecondition:
		r.Fine("keyring", "in use by a broker that runs")
	case protocol.CodeOf(err) == protocol.CodeUnauthenticated && keyring.Sealed(o.Data):
		r.Fine("keyring", "sealed with a passphrase, which nobody is asked for here")
		return true, ""
	case !r.Err("keyring", err, why, "restore keyring.age and keyring.key from a backup"):
		r.Fine("keyring", "root %.12s…", identity.Fingerprint(k.Root()))
		left = leftIn(k)
		k.Close() // only a lock
		return true, left
	}
	return false, ""
}

// examinePaths looks at the files, or at Consul as the broker would. left is where files
// were before.
func examinePaths(ctx context.Context, r *finding.Report, cfg broker.Config, file, left string) {
	if cfg.Consul == nil {
		broker.ExaminePaths(r, cfg.Path(cfg.Paths))
		return
	}
	if n, problems, err := consul.Examine(left); err == nil && n+len(problems) > 0 {
		r.Warn("paths", fmt.Sprintf("%s has %d entries, which count for nothing: the consul block says that intentions in Consul decide", left, n+len(problems)),
			"whoever edits them changes nothing", "consul config write FILE  for what is still meant, then move the files away")
	}
	if _, err := settings.Decode(settings.Broker, cfg.Consul.Body, cfg.Dir, os.Getenv); r.Err("consul", err, noStart, "edit the consul block of "+file) {
		return
	}
	f, err := intentions.ReadFile(file, os.Getenv)
	if r.Err("consul", err, noStart, "edit "+file) {
		return
	}
	f.Examine(ctx, r)
}

// examineVault looks at the server that holds grants and credentials, where there is
// one, as the broker would. The broker does not start with a block that is refused.
func examineVault(ctx context.Context, r *finding.Report, cfg broker.Config, file, left string) {
	if cfg.Vault == nil {
		return
	}
	sayLeft(r, left, "")
	if _, err := vaultpolicy.Decode(cfg.Vault.Body, cfg.Dir, os.Getenv); r.Err("vault", err, noStart, "edit the vault block of "+file) {
		return
	}
	f, err := vaultpolicy.ReadFile(file, os.Getenv)
	if r.Err("vault", err, noStart, "edit "+file) {
		return
	}
	f.Examine(ctx, r)
}

// examineListener tells a broker from another program that has its port. idle says that
// no broker of this directory runs.
func examineListener(ctx context.Context, r *finding.Report, address string, idle bool) {
	l, p, err := listen(address)
	switch {
	case err == nil:
		l.Close()
		p.Close()
		r.Fine("port", "%s is free for TCP and UDP: no broker listens there", address)
	case errors.Is(err, syscall.EADDRINUSE):
		const why = "a broker of this directory does not start while it is so"
		mend := finding.PortHolder(address) + "  (which program has it: stop that, or choose another address with --listen)"
		switch who, err := peerOf(ctx, address); {
		case err != nil:
			r.Bad("port", address+" is in use by a program that does not answer as a broker: "+err.Error(), why, mend)
		case who != identity.RoleBroker:
			r.Bad("port", address+" is in use by another program: a "+cmp.Or(string(who), "peer without a role")+", and no broker", why, mend)
		case idle:
			r.Bad("port", address+" is in use by a broker of another directory: none runs of this one", why, mend+"; or name its directory with --data")
		default:
			r.Fine("port", "%s is in use by a broker", address)
		}
	default:
		r.Bad("port", err.Error(), "the broker does not start", "choose another address with --listen")
	}
}

// peerTimeout bounds the question who listens.
const peerTimeout = 4 * time.Second

// peerOf asks who listens at an address by what its certificate says, which is not
// proven: nothing is sent, and nothing is believed but that.
func peerOf(ctx context.Context, address string) (identity.Role, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"}}} // looked at, not trusted
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return identity.RoleNone, err
	}
	defer conn.Close()
	shown := conn.(*tls.Conn).ConnectionState().PeerCertificates
	if len(shown) == 0 {
		return identity.RoleNone, nil
	}
	id, err := identity.FromLeaf(shown[0])
	return id.Role, err
}
