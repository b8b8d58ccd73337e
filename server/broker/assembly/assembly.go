// Package assembly puts a broker together for its binary: the keyring as root, the
// keyring or a vault block's server as authority, files or Consul as paths, real sockets. It
// has no logic of its own.
package assembly

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac/consul"
	"bivouac/consul/intentions"
	"bivouac/consul/settings"
	"bivouac/edge/durable"
	"bivouac/edge/finding"
	"bivouac/edge/identity"
	edgemetric "bivouac/edge/metric"
	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/bubblewrap"
	"bivouac/server/broker"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/metric"
	"bivouac/vaultpolicy"
)

// Names inside the data directory.
const (
	ConfigFile = "broker.hcl"
	callLog    = "calls.log"
	spendFile  = "spend.json"
	sliceFile  = "slices.log"
	pathsDir   = "paths"
)

// Options of a broker process.
type Options struct {
	Data string
	// Config file; empty means ConfigFile in Data.
	Config string
	// Listen overrides the configuration's address.
	Listen string
	// Servers override the configuration's.
	Servers []string
	// Passphrase of the keyring, where it has one.
	Passphrase keyring.Passphrase
	// Metrics is the address of the page of numbers; empty: none.
	Metrics string
	// Again is the command that starts this broker with the flags of its last start, for
	// the doctor, where its addresses are of then; empty: they are as they were given.
	Again string
	// ReadyFunc is told once that the broker is ready; nil: nobody.
	ReadyFunc func()
	Version   string
	Log       *slog.Logger
}

// DefaultDir is where a broker keeps its data when nobody says otherwise.
func DefaultDir() string {
	return durable.StateDir("bivouac/broker", "bivouac-broker")
}

// Init makes a data directory: the keyring and, where they are missing, a first
// configuration with the addresses that are given, and the paths directory. It returns
// the root's fingerprint, or nothing where a keyring was there, which stays, and its
// configuration was missing.
func Init(data, listen string, servers []string, with ...keyring.Passphrase) (string, error) {
	first, err := broker.First(listen, servers)
	if err != nil {
		return "", err
	}
	path := filepath.Join(data, ConfigFile)
	if _, err := os.Stat(path); err == nil && (listen != "" || len(servers) > 0) {
		return "", protocol.Errorf(protocol.CodeAlreadyExists, "%s is there already: say listen and servers in it, and leave --listen and --server out", path)
	}
	fingerprint := ""
	if _, lost := os.Lstat(path); !errors.Is(lost, fs.ErrNotExist) || !keyring.Has(data) {
		if fingerprint, err = keyring.Init(data, with...); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(filepath.Join(data, pathsDir), 0o700); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fingerprint, nil
	}
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(first)
	return fingerprint, errors.Join(err, f.Close())
}

// Run opens everything and serves until ctx ends.
func Run(ctx context.Context, o Options) error {
	file := o.Config
	if file == "" {
		file = filepath.Join(o.Data, ConfigFile)
	}
	cfg, err := broker.LoadConfig(file)
	if err != nil {
		return err
	}
	if o.Listen != "" {
		cfg.Listen = o.Listen
	}
	if len(o.Servers) > 0 {
		cfg.Servers = o.Servers
	}
	confine := sandboxes(cfg, o.Log)
	if err := cfg.Confined(ctx, confine, o.Data); err != nil {
		return err
	}
	keys, err := keyring.Open(o.Data, o.Passphrase)
	if err != nil {
		return err
	}
	defer keys.Close() // only a lock
	held, err := authority(cfg, keys, o.Log)
	if err != nil {
		return err
	}
	in, err := consulOf(cfg)
	if err != nil {
		return err
	}
	paths, err := paths(ctx, cfg, in, o.Log)
	if err != nil {
		return err
	}
	listener, packets, err := listen(cfg.Listen)
	if err != nil {
		return err
	}
	own, vouch, err := ownOf(in, o.Log)
	if err != nil {
		listener.Close() // nothing was served
		packets.Close()
		return err
	}
	var b *broker.Broker
	entry, err := entryOf(in, func(ctx context.Context) error { return b.Ready(ctx) }, keys.BrokerID(), listener.Addr().String(), o)
	if err != nil {
		listener.Close() // nothing was served
		packets.Close()
		return err
	}
	meter := metric.New(o.Version)
	b, err = broker.New(cfg, broker.Ports{
		Meter:     meter,
		Authority: held, Root: root(keys, held, o.Log), Paths: paths, ResetKey: keys.ResetKey(), Log: o.Log, ConfigFile: file,
		CallLog: filepath.Join(o.Data, callLog), SpendFile: filepath.Join(o.Data, spendFile), SliceFile: filepath.Join(o.Data, sliceFile),
		WitnessDir: o.Data, Sandbox: confine, Own: own, Vouch: vouchOf(vouch),
	})
	if err != nil {
		listener.Close() // nothing was served
		packets.Close()
		return err
	}
	o.Log.Info("broker ready", "listen", listener.Addr().String(), "broker", keys.BrokerID(), "pool", cfg.Pool,
		"fingerprint", identity.Fingerprint(keys.Root()), "models", len(cfg.Models), "destinations", len(cfg.Destinations))
	if o.ReadyFunc != nil {
		o.ReadyFunc()
	}
	meter.Watch(b)
	err = runBoth(ctx, o.Metrics, meter, func(ctx context.Context) error {
		return runBeside(ctx, entry, vouch, func(ctx context.Context) error { return b.Run(ctx, packets, listener) })
	})
	if confine != nil {
		err = errors.Join(err, confine.Tidy(context.WithoutCancel(ctx)))
	}
	o.Log.Info("broker stopped")
	return err
}

// authority that holds grants and credentials: the server of the vault block, which
// nothing takes the place of, or the keyring where there is no such block.
func authority(cfg broker.Config, keys *keyring.Keyring, log *slog.Logger) (broker.Authority, error) {
	if cfg.Vault == nil {
		return keys, nil
	}
	c, err := vaultpolicy.Decode(cfg.Vault.Body, cfg.Dir, os.Getenv)
	if err != nil {
		return nil, err
	}
	log.Info("grants and credentials are in a server of their own", "server", c.Address, "namespace", c.Namespace)
	if what := leftIn(keys); what != "" {
		log.Warn(what, "mend", "bivouac-broker vault-move")
	}
	v, err := vaultpolicy.New(vaultpolicy.Params{Config: c, Trust: keys, Log: log})
	if err != nil {
		return nil, err
	}
	return onVault{v, keys}, nil
}

// firstAnswers bounds the wait for them at the start.
const firstAnswers = 5 * time.Second

// paths say who may reach what: the intentions of the consul block's server, which no
// file takes the place of, or the files where there is no such block.
func paths(ctx context.Context, cfg broker.Config, in *settings.Config, log *slog.Logger) (broker.Paths, error) {
	if in != nil {
		log.Info("who may reach what is in Consul", "server", in.Address)
		s, err := intentions.Open(*in, governed(cfg, in), cfg.Authority, log)
		if err != nil {
			return nil, err
		}
		// A broker starts also while Consul is away: it refuses what it does not know.
		first, cancel := context.WithTimeout(ctx, firstAnswers)
		defer cancel()
		if err := s.Refresh(first); err != nil {
			log.Error("the broker starts without knowing who may reach what: nothing begins until Consul has said it", "error", err)
		}
		return s, nil
	}
	if err := consul.Closed(cfg.Path(cfg.Paths)); err != nil {
		return nil, err
	}
	return consul.OpenDirectory(cfg.Path(cfg.Paths), log)
}

// Identity of what runs in the broker's sandboxes, on a machine where the broker is root:
// another one than an edge's sandboxes have there.
const sandboxUID = bubblewrap.DefaultUID + 1

// sandboxes that MCP servers run in; nil where broker.hcl names no command.
func sandboxes(cfg broker.Config, log *slog.Logger) sandbox.Backend {
	if len(cfg.Commands()) == 0 {
		return nil
	}
	return bubblewrap.New(bubblewrap.Config{UID: sandboxUID, GID: sandboxUID, CgroupParent: "bivouac-mcp", Log: log})
}

// root of trust is the keyring. Receipts are signed by the server that holds the
// grants, where there is one; a revocation has its receipt also while that is away.
func root(keys *keyring.Keyring, held broker.Authority, log *slog.Logger) broker.Root {
	if v, ok := held.(onVault); ok {
		return vaultReceipts{keys, v.Vault, log}
	}
	return keys
}

type vaultReceipts struct {
	*keyring.Keyring
	vault *vaultpolicy.Vault
	log   *slog.Logger
}

func (r vaultReceipts) SignReceipt(ctx context.Context, receipt []byte) (string, error) {
	jws, err := r.vault.SignReceipt(ctx, receipt, r.Keyring)
	if err == nil {
		return jws, nil
	}
	r.log.WarnContext(ctx, "a receipt is signed by the keyring, because the server that holds the grants does not", "error", err)
	return r.Keyring.SignReceipt(ctx, receipt)
}

// runBoth serves the page of numbers beside the broker, where it has an address.
func runBoth(ctx context.Context, address string, page *metric.Broker, serve func(context.Context) error) error {
	if address == "" {
		return serve(ctx)
	}
	l, err := edgemetric.Listen(ctx, address, "--metrics")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serve(ctx) })
	g.Go(func() error {
		if err != nil {
			return err // the broker ends with it, and closes what it has open
		}
		return page.Serve(ctx, l)
	})
	return g.Wait()
}

// listen takes one port for TCP and UDP.
func listen(address string) (net.Listener, net.PacketConn, error) {
	taken := func(err error) error {
		if errors.Is(err, syscall.EADDRINUSE) {
			return protocol.Errorf(protocol.CodeFailedPrecondition, "the address %s cannot be used: %w; see which program has it with `%s` and stop it, or choose another with --listen",
				address, err, finding.PortHolder(address))
		}
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the address %s cannot be used: %w; choose another with --listen", address, err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, taken(err)
	}
	p, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		l.Close() // nothing was served
		return nil, nil, taken(err)
	}
	return l, p, nil
}
