// Command bivouac-broker adds the secret on the way out: model calls, http tools,
// grants and credentials, and the root of trust of a deployment.
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
	"time"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/devdir"
	"bivouac/cmd/internal/laststart"
	"bivouac/cmd/internal/usage"
	"bivouac/edge/finding"
	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/server/broker/assembly"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/provider"
)

var version = "dev" // set by the build

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := noCore()
	if err == nil {
		err = command().ExecuteContext(ctx)
	}
	var over finding.Verdict
	if errors.As(err, &over) {
		os.Exit(int(over))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bivouac-broker: %s [%s]\n", legible.Text(err.Error()), protocol.CodeOf(err))
		os.Exit(protocol.CodeOf(err).ExitCode())
	}
}

func command() *cobra.Command {
	var data string
	root := &cobra.Command{
		Use:   "bivouac-broker",
		Short: "Models, http tools and credentials for Bivouac, behind mutual TLS",
		Long: `Holds the root of trust, credentials and grants; adds the secret on the way out, and
decides by its own files who may reach what.

First start:  bivouac-broker init
              bivouac-broker server-code --out FILE    for bivouac-server --broker-code-file
              bivouac-broker run`,
		Args:          usage.Exactly(0),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%w; see bivouac-broker --help", err)
	})
	root.PersistentFlags().StringVar(&data, "data", assembly.DefaultDir(), "directory of keyring, call log and broker.hcl; 0700")
	root.AddCommand(initCommand(&data), codeCommand(&data), runCommand(&data), ledgerCommand(&data), doctorCommand(&data),
		backupCommand(&data), restoreCommand(&data), keyringCommand(&data), moveCommand(&data), validateCommand(&data))
	return root
}

func initCommand(data *string) *cobra.Command {
	var listen string
	var servers []string
	var with *passphrase
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the keyring, a first broker.hcl and the paths directory; print the root's fingerprint",
		Long: "Makes the keyring, a first broker.hcl and the paths directory, and prints the root's fingerprint. The addresses\n" +
			"that are given are written to broker.hcl, so that bivouac-broker run needs none. With --passphrase-file the keyring\n" +
			"opens with that passphrase alone, which run needs then: from a file, from systemd, or from the terminal.\n" +
			"Where a keyring is and broker.hcl is missing, the keyring stays, and a first broker.hcl is written again.",
		Example: "  bivouac-broker init --listen 203.0.113.10:7402 --server 203.0.113.10:7401\n  bivouac-broker init --passphrase-file prompt",
		Args:    usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if with.from != "" && keyring.Has(*data) {
				return protocol.Errorf(protocol.CodeAlreadyExists, "there is a keyring in %s, which stays as it is: leave --passphrase-file out, or give it another key with bivouac-broker keyring rekey", *data)
			}
			fingerprint, err := assembly.Init(*data, listen, servers, with.choose("passphrase of the new keyring"))
			if err != nil {
				return err
			}
			if fingerprint == "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "the keyring in %s stays as it is; %s was missing, and is a first one again: say in it what may be reached\n", *data, filepath.Join(*data, assembly.ConfigFile))
				return nil
			}
			fmt.Fprintln(cmd.OutOrStdout(), fingerprint)
			fmt.Fprintf(cmd.ErrOrStderr(), "keyring made in %s; say what may be reached in %s\n", *data, filepath.Join(*data, assembly.ConfigFile))
			return nil
		},
	}
	with = passphraseFlag(cmd, "passphrase-file", "seal the keyring with the passphrase of this file (0600), or \"prompt\"")
	cmd.Flags().StringVar(&listen, "listen", "", "address for server and runners, TCP and UDP (default 127.0.0.1:7402)")
	cmd.Flags().StringArrayVar(&servers, "server", nil, "runner listener whose feed is followed (default 127.0.0.1:7401; repeatable)")
	return cmd
}

func codeCommand(data *string) *cobra.Command {
	var ttl time.Duration
	var out string
	var open *passphrase
	cmd := &cobra.Command{
		Use:   "server-code",
		Short: "Print a single-use code with which one bivouac-server enrols",
		Long:  "Prints a single-use code with which one bivouac-server enrols (--broker-code-file). It works while the broker runs.",
		Args:  usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			code, err := keyring.NewServerCode(directory(cmd, *data), ttl, open.open())
			if err != nil {
				return err
			}
			if out != "" {
				return os.WriteFile(out, []byte(code.Reveal()+"\n"), 0o600)
			}
			fmt.Fprintln(cmd.OutOrStdout(), code.Reveal())
			return nil
		},
	}
	open = passphraseFlag(cmd, "passphrase-file", openUsage)
	cmd.Flags().DurationVar(&ttl, "ttl", 10*time.Minute, "life of the code")
	cmd.Flags().StringVar(&out, "out", "", "write the code to this file (0600) instead of printing it")
	return cmd
}

// directory of the broker that is meant: that of bivouac dev, where there is no other and
// nobody named one.
func directory(cmd *cobra.Command, data string) string {
	return devdir.Part(data, "broker", cmd.Flags().Changed("data"))
}

// notDevs refuses to start a broker where none is, and the one of bivouac dev is meant.
func notDevs(cmd *cobra.Command, data string) error {
	dev := devdir.Part(data, "broker", cmd.Flags().Changed("data") || cmd.Flags().Changed("config"))
	if dev == data {
		return nil
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "there is no broker in %s; the one in %s is started, with its server, by: %s", data, dev, devdir.Command(filepath.Dir(dev)))
}

// kept are the flags that a start leaves for the next one and for the doctor.
var kept = laststart.Flags{Words: []string{"listen", "server", "metrics"}, Paths: []string{"config"}}

// remember takes what the last start in the data directory was given, and says which
// command starts the broker so again; empty where there is nothing of it.
func remember(cmd *cobra.Command, data string) (again string, err error) {
	if cmd.Flags().Changed("config") {
		return "", nil
	}
	last, err := laststart.Read(data)
	if err != nil {
		return "", err
	}
	if some, err := kept.Apply(last, cmd); err != nil || !some {
		return "", err
	}
	again = "bivouac-broker run"
	if data != devdir.Own("broker") {
		again += " --data " + shellword.Quote(data)
	}
	return again, nil
}

// asLastTime completes a command line without an address of its own, and keeps one that
// came to serve.
func asLastTime(cmd *cobra.Command, o *assembly.Options) error {
	if !kept.Any(cmd) {
		again, err := remember(cmd, o.Data)
		if err != nil {
			return err
		}
		if again != "" {
			o.Log.Info("no address was given: started as the last time", "flags", filepath.Join(o.Data, laststart.File))
		}
	}
	given, err := kept.Given(cmd)
	if err != nil {
		return err
	}
	o.ReadyFunc = func() {
		if err := given.Keep(o.Data); err != nil {
			o.Log.Warn("the flags of this start are not kept: the doctor will not know them", "error", err)
		}
	}
	return nil
}

func runCommand(data *string) *cobra.Command {
	var o assembly.Options
	var level slog.Level
	var open *passphrase
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve until interrupted",
		Long: "Serves until interrupted. Without a flag but --data it starts as it was started last (last-start.json there).\n" +
			"broker.hcl says what may be reached and spent: model routes in the wire formats\n" +
			strings.Join(provider.Formats, ", ") + " (format = \"…\" of a model block), and destinations of http tools.\n" +
			"The directory paths says who may reach what, or Consul where there is a consul block\n" +
			"(consul/README.md); its address, CA and token file may come from CONSUL_HTTP_ADDR,\n" +
			"CONSUL_CACERT and CONSUL_HTTP_TOKEN_FILE.",
		Args: usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := notDevs(cmd, *data); err != nil {
				return err
			}
			o.Data, o.Version, o.Log = *data, version, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			if err := asLastTime(cmd, &o); err != nil {
				return err
			}
			o.Passphrase = open.open()
			return assembly.Run(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.Config, "config", "", "configuration (default broker.hcl in --data)")
	cmd.Flags().StringVar(&o.Listen, "listen", "", "address, TCP and UDP (default: that of the configuration)")
	cmd.Flags().StringArrayVar(&o.Servers, "server", nil, "runner listener whose feed is followed (default: those of the configuration; repeatable)")
	cmd.Flags().StringVar(&o.Metrics, "metrics", "", "address of the page of numbers, for Prometheus (default: none)")
	open = passphraseFlag(cmd, "passphrase-file", openUsage)
	cmd.Flags().TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	return cmd
}
