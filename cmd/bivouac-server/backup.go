package main

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/devdir"
	"bivouac/cmd/internal/laststart"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/server"
)

// backup copies the state into one file.
func (o *options) backup() *cobra.Command {
	b := server.Backup{}
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the state and all artifacts into one file",
		Long: `Copies every row of the database, as of one instant, and the artifacts that the rows
name, also while a server runs. The same file restores into SQLite and into
PostgreSQL. It holds what people wrote: only you can read it.

It does not hold the broker's keyring (keyring.age and keyring.key in the broker's
data directory): without it nobody can use the copy. Keep it elsewhere.`,
		Example: "  bivouac-server backup --data /var/lib/bivouac/server /mnt/backup/monday.tar",
		Args:    oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.remember(cmd); err != nil {
				return err
			}
			if err := o.settle(cmd); err != nil {
				return err
			}
			if err := devdir.ServerPart(o.config.DataDir); err != nil {
				return err
			}
			o.config.DataDir = devdir.Part(o.config.DataDir, "server", o.file != "" || cmd.Flags().Changed("data"))
			b.Config, b.File = o.config, args[0]
			end, err := b.Run(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "%s holds the state of %s: %d sessions, %d turns, %d events and %d artifacts.\n", b.File, o.config.DataDir, end.Rows["sessions"], end.Rows["turns"], end.Rows["events"], end.Blobs)
			if n := len(end.Missing); n > 0 {
				fmt.Fprintf(out, "%d artifacts that the database names are gone from the directory, the first is %s.\n", n, end.Missing[0])
			}
			fmt.Fprintf(out, "It does not hold the broker's keyring (%s): keep a copy of that elsewhere.\n", b.Keyring)
			return nil
		},
	}
	cmd.Flags().StringVar(&b.Keyring, "keyring", "keyring.age and keyring.key in the broker's data directory", "where the broker's keyring is, for whoever reads the copy")
	return cmd
}

// restore makes the state from such a file.
func (o *options) restore() *cobra.Command {
	inPlace := false
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the state from a backup; no server may run on it",
		Long: `Fills an empty database and the directory of artifacts. The file is read to its end
first; one that was cut off or altered is refused.

A backup is older than what was done since. So everything that was given out before
is void: fences, capabilities, generations, join codes. Turns that were open end, and
what they had sent, or may have, is looked up and never sent again. What was revoked
since the backup has to be revoked again. The broker signs no ledger that lost its end
until the restore is accepted there: bivouac-broker ledger accept. A directory that is
new is no enrolled server's: it needs a new code of bivouac-broker server-code.

--in-place does the same to a database that was brought back by other means: a copied
disk, or PostgreSQL's own backup.`,
		Example: "  bivouac-server restore --data /var/lib/bivouac/server /mnt/backup/monday.tar\n  bivouac-server restore --in-place --database 'host=db dbname=bivouac passfile=/etc/bivouac/pgpass'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.remember(cmd); err != nil {
				return err
			}
			if err := o.settle(cmd); err != nil {
				return err
			}
			if err := devdir.ServerPart(o.config.DataDir); err != nil {
				return err
			}
			r := server.Restore{Config: o.config}
			if inPlace == (len(args) == 1) || len(args) > 1 {
				return protocol.Errorf(protocol.CodeInvalidArgument, "give the file to restore from, or --in-place without one")
			}
			if len(args) == 1 {
				r.File = args[0]
			}
			done, err := r.Run(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			since := "the state that was brought back"
			if done.Copy != nil {
				since = done.Copy.Manifest.At.Format(time.RFC3339)
				fmt.Fprintf(out, "restored %d sessions, %d turns, %d events and %d artifacts into %s.\n",
					done.Copy.End.Rows["sessions"], done.Copy.End.Rows["turns"], done.Copy.End.Rows["events"], done.Copy.End.Blobs, o.config.DataDir)
			}
			fmt.Fprintf(out, "The store has epoch %d; %d turns that were open are ended.\nWhat was revoked after %s has to be revoked again: bivouac revoke.\n", done.Epoch, done.Turns, since)
			io.WriteString(out, o.afterRestore(done))
			return nil
		},
	}
	cmd.Flags().BoolVar(&inPlace, "in-place", false, "the database was brought back by other means: make void what it gave out")
	return cmd
}

// afterRestore is what is left to do: to start the server, which may have to enrol
// again, and to say at the broker that the restore was on purpose, where it asks.
func (o *options) afterRestore(done server.Restored) string {
	data := o.config.DataDir
	start := "It is enrolled as before and needs no new code. Start it: bivouac-server --data " + shellword.Quote(data)
	switch {
	case devdir.Addresses(data) != nil: // makes a code by itself
		start = "Start it: " + devdir.Command(filepath.Dir(filepath.Clean(data)))
	case !done.Enrolled:
		start = "The broker does not know it yet, so it needs a new code. Where the broker runs: bivouac-broker server-code --out code\n" +
			"and here: " + enrolling(data)
	}
	return start + "\nIf the ledger has lost its end, the broker does not sign it until you say where it runs that this is on purpose; bivouac doctor says whether it waits\n" +
		"for that, half a minute after its first turn: " + accept(data, done.Epoch) + "\n"
}

// enrolling is the whole command that starts a restored server with a new code: at the
// addresses of its last start, kept here or in the directory that was moved away as the
// refusal to restore says; where nobody knows them each has its place.
func enrolling(data string) string {
	command := "bivouac-server --data " + shellword.Quote(data)
	for _, dir := range []string{data, filepath.Clean(data) + ".old"} {
		last, err := laststart.Read(dir)
		if err != nil || len(last) == 0 {
			continue
		}
		for _, flag := range slices.Sorted(maps.Keys(last)) {
			for _, value := range last[flag] {
				command += " --" + flag + " " + shellword.Quote(value)
			}
		}
		return command + " --broker-code-file code  (as it was started last: " + filepath.Join(dir, laststart.File) + ")"
	}
	return command + " --public HOST:7400 --tls-cert FILE --tls-key FILE --runners HOST:7401 --broker HOST:7402 --broker-code-file code\n" +
		"with what it had: runners dial the old --runners; --tls-cert and --tls-key where --public is beyond this machine. What is left out is loopback"
}

// accept is the whole command where the broker is beside the server, as bivouac dev
// has it, and elsewhere the one for the broker's own place.
func accept(data string, epoch uint32) string {
	command := fmt.Sprintf("bivouac-broker ledger accept --epoch %d", epoch)
	if broker := devdir.Beside(data, "broker"); broker != "" && broker != devdir.Own("broker") {
		command += " --data " + shellword.Quote(broker)
	}
	return command
}

// oneFile takes exactly one file name.
func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "give one FILE; see %s --help", cmd.CommandPath())
}
