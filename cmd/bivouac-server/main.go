// Command bivouac-server is the control plane: sessions, turns, policy and the
// listeners for people and machines. It holds no provider key, no tool
// credential and no sandbox.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/devdir"
	"bivouac/cmd/internal/laststart"
	"bivouac/cmd/internal/usage"
	"bivouac/edge/finding"
	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/server"
)

var version = "dev" // set by the build

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	var over finding.Verdict
	if errors.As(err, &over) {
		os.Exit(int(over))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bivouac-server: %s [%s]\n", legible.Text(err.Error()), protocol.CodeOf(err))
		os.Exit(protocol.CodeOf(err).ExitCode())
	}
}

// options are what the command line says; a flag wins over the file.
type options struct {
	file, logLevel string
	logJSON        bool
	config         server.Config
	again          bool // flags of the last start count
}

// kept are the flags that a start leaves for the next one and for the doctor. The
// passwords of a database are in the file that its DSN names, and a code is used once.
var kept = laststart.Flags{
	Words:   []string{"database", "public", "runners", "advertise-runners", "broker", "advertise-broker", "trace-endpoint", "metrics"},
	Paths:   []string{"config", "dsn-file", "blobs", "tls-cert", "tls-key"},
	Instead: []string{"database", "dsn-file"},
}

func command() *cobra.Command {
	o := options{config: server.Default()}
	o.config.Version = version
	root := &cobra.Command{
		Use:   "bivouac-server",
		Short: "Bivouac's control plane",
		Long: `Keeps sessions, queue and every decision; serves the API for people and the
listener for runners and brokers. Settings come from flags, then from the file
of --config (server.hcl), then from defaults.

First start:  bivouac-server bootstrap --principal NAME --token-file FILE
              bivouac-server --broker HOST:7402 --broker-code-file FILE
Later:        bivouac-server    as it was started last: its addresses, files and
                                database are kept in --data (last-start.json)`,
		Args: usage.Exactly(0), CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true}, SilenceUsage: true, SilenceErrors: true, Version: version,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%w; see bivouac-server --help", err)
	})
	own, file := &o.config, root.PersistentFlags()
	file.StringVar(&o.file, "config", "", "configuration file, HCL")
	file.StringVar(&own.DataDir, "data", own.DataDir, "data directory")
	file.StringVar(&own.Database, "database", "", "DSN of a PostgreSQL database, without a password: host=… dbname=… passfile=… (default: SQLite in --data)")
	file.StringVar(&own.DSNFile, "dsn-file", "", "file with that DSN")
	file.StringVar(&own.BlobDir, "blobs", "", "directory of artifacts, the same for all servers of a database (default: blobs in --data)")
	o.addresses(root)
	f := root.Flags()
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.BoolVar(&o.logJSON, "log-json", false, "log as JSON")
	root.AddCommand(o.bootstrap(), o.backup(), o.restore(), o.doctor())
	return root
}

// addresses are the flags of what a server, and its doctor, need to know.
func (o *options) addresses(cmd *cobra.Command) {
	own, f := &o.config, cmd.Flags()
	f.StringVar(&own.PublicAddress, "public", own.PublicAddress, "address of the API, host:port")
	f.StringVar(&own.TLSCertFile, "tls-cert", "", "certificate of the API, PEM; needed beyond loopback")
	f.StringVar(&own.TLSKeyFile, "tls-key", "", "its key, PEM")
	f.StringVar(&own.RunnerAddress, "runners", own.RunnerAddress, "address for runners and brokers, TCP and UDP")
	f.StringVar(&own.AdvertiseRunner, "advertise-runners", "", "how runners reach it, host:port (default: --runners)")
	f.StringVar(&own.BrokerAddress, "broker", own.BrokerAddress, "address of the broker")
	f.StringVar(&own.AdvertiseBroker, "advertise-broker", "", "how runners reach the broker (default: --broker)")
	f.StringVar(&own.BrokerCodeFile, "broker-code-file", "", "file with a code of bivouac-broker server-code, for the first start")
	f.StringVar(&own.TraceEndpoint, "trace-endpoint", "", "collector of traces, OTLP over HTTP, such as http://127.0.0.1:4318 (default: none)")
	f.StringVar(&own.MetricsAddress, "metrics", "", "address of the page of numbers, for Prometheus (default: none)")
}

// remember takes what the last start in the data directory was given. A command line
// that names an address, a file or a database is a whole one, as it always was; one of
// the doctor is compared with what was given, flag by flag.
func (o *options) remember(cmd *cobra.Command) error {
	if o.file != "" || kept.Any(cmd) && cmd.Name() != "doctor" {
		return nil
	}
	dir := devdir.Part(o.config.DataDir, "server", cmd.Flags().Changed("data"))
	last, err := laststart.Read(dir)
	if err != nil {
		return err
	}
	if o.again, err = kept.Apply(last, cmd); err != nil || !o.again {
		return err
	}
	if o.config.Again = "bivouac-server"; dir != devdir.Own("server") {
		o.config.Again += " --data " + shellword.Quote(dir)
	}
	return nil
}

// settle lays the flags that were given over the file, and the file over the
// defaults.
func (o *options) settle(cmd *cobra.Command) error {
	if o.file == "" {
		return nil
	}
	given := o.config
	c, err := server.LoadFile(server.Default(), o.file)
	if err != nil {
		return err
	}
	c.Version, c.Again = version, given.Again
	for name, pair := range map[string][2]*string{
		"data": {&c.DataDir, &given.DataDir}, "public": {&c.PublicAddress, &given.PublicAddress},
		"tls-cert": {&c.TLSCertFile, &given.TLSCertFile}, "tls-key": {&c.TLSKeyFile, &given.TLSKeyFile},
		"runners": {&c.RunnerAddress, &given.RunnerAddress}, "advertise-runners": {&c.AdvertiseRunner, &given.AdvertiseRunner},
		"broker": {&c.BrokerAddress, &given.BrokerAddress}, "advertise-broker": {&c.AdvertiseBroker, &given.AdvertiseBroker},
		"trace-endpoint":   {&c.TraceEndpoint, &given.TraceEndpoint},
		"metrics":          {&c.MetricsAddress, &given.MetricsAddress},
		"broker-code-file": {&c.BrokerCodeFile, &given.BrokerCodeFile},
		"database":         {&c.Database, &given.Database}, "dsn-file": {&c.DSNFile, &given.DSNFile}, "blobs": {&c.BlobDir, &given.BlobDir},
	} {
		if cmd.Flags().Changed(name) {
			*pair[0] = *pair[1]
		}
	}
	o.config = c
	return nil
}

func (o *options) run(cmd *cobra.Command) error {
	if err := o.remember(cmd); err != nil {
		return err
	}
	given, err := kept.Given(cmd)
	if err != nil {
		return err
	}
	if err := o.settle(cmd); err != nil {
		return err
	}
	if dev := devdir.Part(o.config.DataDir, "server", o.file != "" || o.config.BrokerCodeFile != "" || cmd.Flags().Changed("data")); dev != o.config.DataDir {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "there is no server in %s; the one in %s is started, with its broker, by: %s",
			o.config.DataDir, dev, devdir.Command(filepath.Dir(dev)))
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return protocol.Errorf(protocol.CodeInvalidArgument, "--log-level: %q is none of debug, info, warn, error", o.logLevel)
	}
	var handler slog.Handler = slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	if o.logJSON {
		handler = slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	}
	o.config.Log = slog.New(handler)
	if o.again {
		o.config.Log.Info("no address was given: started as the last time", "flags", filepath.Join(o.config.DataDir, laststart.File))
	}
	o.config.StartedFunc = func() {
		if last, err := laststart.Read(o.config.DataDir); err == nil {
			if lost := given.Lost(last); len(lost) > 0 {
				o.config.Log.Warn("this start names less than the last one, and is kept in its place: what is left out is at its default", "left out", strings.Join(lost, " "))
			}
		}
		if err := given.Keep(o.config.DataDir); err != nil {
			o.config.Log.Warn("the flags of this start are not kept: the doctor will not know them", "error", err)
		}
	}
	s, err := server.New(o.config)
	if err != nil {
		return err
	}
	return s.Run(cmd.Context())
}
