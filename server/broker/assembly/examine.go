package assembly

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

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
	examineKeyring(r, o)
	file := o.Config
	if file == "" {
		file = filepath.Join(o.Data, ConfigFile)
	}
	cfg, err := broker.LoadConfig(file)
	if r.Err("configuration", err, "the broker does not start with it", "edit "+file) {
		return r
	}
	if o.Listen != "" {
		cfg.Listen = o.Listen
	}
	if len(o.Servers) > 0 {
		cfg.Servers = o.Servers
	}
	r.Fine("configuration", "%s: %d model route(s), %d destination(s), feed of %s, as the next start reads it", file, len(cfg.Models), len(cfg.Destinations), strings.Join(cfg.Servers, ", "))
	broker.ExaminePaths(r, cfg.Path(cfg.Paths))
	broker.ExamineCaps(r, cfg.Caps)
	examineVault(ctx, r, cfg, file)
	broker.ExamineWays(ctx, r, cfg, egress.Network{})
	examineListener(r, cfg.Listen)
	r.Disk(finding.Disk{Path: o.Data, Holds: "keyring and call log", Mend: "du -xh " + o.Data + " | sort -h | tail"})
	return r
}

// examineKeyring opens it, unless a broker that runs has it.
func examineKeyring(r *finding.Report, o Options) {
	const why = "it is the root of trust, and holds every credential"
	for _, name := range []string{"keyring.age", "keyring.key"} {
		path := filepath.Join(o.Data, name)
		_, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			r.Bad("keyring", path+" is not there", why, "--data DIR, where this machine's broker keeps it elsewhere; restore "+name+" from a backup; or, if there never was one, bivouac-broker init --data "+o.Data+"  (a new root: everybody enrols again)")
			return
		}
		if r.Err("keyring", err, why, "run this as the user of the broker") {
			return
		}
		if err := filemode.Secret(path); err != nil {
			r.Bad("keyring", path+" is open to other users", why, filemode.Mend(err, ""))
		}
	}
	k, err := keyring.Open(o.Data)
	switch {
	case protocol.CodeOf(err) == protocol.CodeFailedPrecondition:
		r.Fine("keyring", "in use by a broker that runs")
	case !r.Err("keyring", err, why, "restore keyring.age and keyring.key from a backup"):
		r.Fine("keyring", "root %.12s…", identity.Fingerprint(k.Root()))
		k.Close()
	}
}

// examineVault looks at the server that holds grants and credentials, where there is
// one, as the broker would. The broker does not start with a block that is refused.
func examineVault(ctx context.Context, r *finding.Report, cfg broker.Config, file string) {
	if cfg.Vault == nil {
		return
	}
	const why = "the broker does not start with it"
	if _, err := vaultpolicy.Decode(cfg.Vault.Body, cfg.Dir, os.Getenv); r.Err("vault", err, why, "edit the vault block of "+file) {
		return
	}
	f, err := vaultpolicy.ReadFile(file, os.Getenv)
	if r.Err("vault", err, why, "edit "+file) {
		return
	}
	f.Examine(ctx, r)
}

func examineListener(r *finding.Report, address string) {
	l, p, err := listen(address)
	switch {
	case err == nil:
		l.Close()
		p.Close()
		r.Fine("port", "%s is free for TCP and UDP: no broker listens there", address)
	case errors.Is(err, syscall.EADDRINUSE):
		r.Fine("port", "%s is in use: by a broker, if one runs", address)
	default:
		r.Bad("port", err.Error(), "the broker does not start", "choose another address with --listen")
	}
}
