package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/devdir"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
)

// state names a deployment's state on this machine.
type state struct {
	data, database, dsnFile, blobs string
	inPlace                        bool
}

func (s *state) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.data, "data", "", "data directory of the server (default: that of the one deployment on this machine)")
	f.StringVar(&s.database, "database", "", "DSN of its PostgreSQL database (default: SQLite in --data)")
	f.StringVar(&s.dsnFile, "dsn-file", "", "file with that DSN")
	f.StringVar(&s.blobs, "blobs", "", "its directory of artifacts (default: blobs in --data)")
}

// backupCommand and restoreCommand work on the state itself, with the server's own
// program, which must be here.
func (a *app) backupCommand() *cobra.Command {
	s := &state{}
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the server's state and all artifacts into one file",
		Long: `Runs bivouac-server backup on this machine, which must be the server's, also while the
server runs. The file holds what people wrote, and not the broker's keyring: keep that
elsewhere. Without --data it is the state of the one deployment on this machine,
bivouac-server's or bivouac dev's.`,
		Example: "  bivouac backup monday.tar\n  bivouac backup --data /var/lib/bivouac/server /mnt/backup/monday.tar",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.run(cmd, "backup", args...)
		},
	}
	s.flags(cmd)
	return cmd
}

func (a *app) restoreCommand() *cobra.Command {
	s := &state{}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the server's state from a backup; no server may run on it",
		Long: `Runs bivouac-server restore on this machine. Everything that was given out before is
void, turns that were open end, and nothing that they had sent is sent again. What was
revoked since the backup has to be revoked again. Without --data it is the state of the
one deployment on this machine, bivouac-server's or bivouac dev's; where there are both,
or none, you say which.`,
		Example: "  bivouac restore --data /var/lib/bivouac/server /mnt/backup/monday.tar\n  bivouac restore --in-place --data /var/lib/bivouac/server",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.inPlace {
				args = append(args, "--in-place")
			}
			return s.run(cmd, "restore", args...)
		},
	}
	s.flags(cmd)
	cmd.Flags().BoolVar(&s.inPlace, "in-place", false, "the state was brought back by other means: make void what it gave out")
	return cmd
}

// settle finds the data directory where nobody names it. It does not guess: a copy of,
// or into, the wrong one looks like a right one until it is needed.
func (s *state) settle(what string) error {
	if s.data != "" {
		return devdir.ServerPart(s.data)
	}
	served, devs := devdir.Own("server"), filepath.Join(devdir.Default(), "server")
	own, dev := devdir.Deployments()
	switch {
	case own && !dev, s.blobs != "" && (s.database != "" || s.dsnFile != ""):
		s.data = served
	case dev && !own:
		s.data = devs
	default:
		there := map[bool]string{true: "two deployments are on this machine",
			false: "no deployment is on this machine, and the state is where the server is: on the server's machine, as its user, bivouac-server " + what + " FILE. If it is this one"}[own]
		return protocol.Errorf(protocol.CodeInvalidArgument, "%s: say whose state it is, with --data %s for that of bivouac-server by itself, or --data %s for that of bivouac dev",
			there, shellword.Quote(served), shellword.Quote(devs))
	}
	return nil
}

// run runs the server's program and ends as it ends.
func (s *state) run(cmd *cobra.Command, what string, args ...string) error {
	if err := s.settle(what); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	t := &tree{bin: filepath.Dir(self)}
	words := append([]string{what, "--data", s.data}, args...)
	for _, f := range []struct{ name, value string }{{"--database", s.database}, {"--dsn-file", s.dsnFile}, {"--blobs", s.blobs}} {
		if f.value != "" {
			words = append(words, f.name, f.value)
		}
	}
	server, err := t.command("bivouac-server", words...)
	if err != nil {
		return err
	}
	server.Stdout, server.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	return ended(cmd.Context(), server)
}

// ended waits for a program that has said itself what went wrong.
func ended(ctx context.Context, server *exec.Cmd) error {
	if err := server.Start(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { server.Process.Kill() })()
	err := server.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	for code, row := range protocol.Codes {
		if row.Exit == exit.ExitCode() {
			return protocol.Errorf(code, "bivouac-server said why")
		}
	}
	return err
}
