package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge/protocol"
	"bivouac/server/broker/keyring"
	"bivouac/server/broker/witness"
)

func keyringCommand(data *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keyring",
		Short: "Change with what the keyring is sealed",
		Args:  usage.Exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(rekeyCommand(data))
	return cmd
}

func rekeyCommand(data *string) *cobra.Command {
	var plain bool
	var old, next *passphrase
	cmd := &cobra.Command{
		Use:   "rekey",
		Short: "Give the keyring a new key: with a passphrase, with another one, or plain",
		Long: `Makes a new keyring.key and seals the keyring for it. With --new-passphrase-file the new
key is sealed with that passphrase; with --plain it is a file that opens by itself, as
init makes one. Whoever has copies of the old files, or knows the old passphrase, opens
nothing that is written from now on; what is in old copies stays in them.

No broker may run on the directory. A crash in between leaves a keyring that opens with
the old passphrase or with the new one: run it again then. Without --data it is the broker
of bivouac dev where there is no other.`,
		Example: "  bivouac-broker keyring rekey --new-passphrase-file prompt\n  bivouac-broker keyring rekey --passphrase-file old --plain",
		Args:    usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if plain == (next.from != "") {
				return protocol.Errorf(protocol.CodeInvalidArgument, "say what the new key is: --new-passphrase-file FILE, --new-passphrase-file prompt, or --plain")
			}
			dir := directory(cmd, *data)
			k, err := keyring.Open(dir, old.open())
			if err != nil {
				return err
			}
			defer k.Close() // only a lock
			if err := k.Rekey(next.choose("new passphrase of the keyring")); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "the keyring in %s has a new key: make a new backup of it, and destroy copies of the old files\n", dir)
			return nil
		},
	}
	old = passphraseFlag(cmd, "passphrase-file", openUsage)
	next = passphraseFlag(cmd, "new-passphrase-file", "file that holds the new passphrase (0600), or \"prompt\"")
	cmd.Flags().BoolVar(&plain, "plain", false, "the new key needs no passphrase")
	return cmd
}

// besideKeyring are the files that a backup holds with the keyring: the last heads of
// ledgers, so that a restored broker signs none that lost its end, and who may what.
var besideKeyring = []string{witness.HeadsFile, "broker.hcl"}

func backupCommand(data *string) *cobra.Command {
	var open, with *passphrase
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the keyring, sealed with a passphrase of its own, into one file",
		Long: `Copies what a broker cannot be made again without: root, receipt key, grants, credentials
and enrolled servers, with broker.hcl and the last heads of ledgers. It works while the
broker runs. The file is sealed with the backup's passphrase, and with nothing else: keep
that apart from it. Paths, caps' spend and the call log are not in it, nor is what is in
Vault or OpenBao; the server's state is bivouac-server backup. Without --data it is the
broker of bivouac dev where there is no other.`,
		Example: "  bivouac-broker backup --backup-passphrase-file prompt /mnt/backup/keyring-monday.age",
		Args:    usage.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if with.from == "" {
				return protocol.Errorf(protocol.CodeInvalidArgument, "say what the backup is sealed with: --backup-passphrase-file FILE, or --backup-passphrase-file prompt")
			}
			dir := directory(cmd, *data)
			c, err := keyring.Backup(dir, args[0], with.choose("passphrase of the backup"), besideKeyring, open.open())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s holds the keyring of %s: root %.12s…, %d grants in force, %d credentials, %d servers%s.\n",
				args[0], dir, c.Fingerprint, c.Grants, c.Credentials, c.Servers, also(c.Beside))
			return nil
		},
	}
	open = passphraseFlag(cmd, "passphrase-file", openUsage)
	with = passphraseFlag(cmd, "backup-passphrase-file", "file that holds the backup's passphrase (0600), or \"prompt\"")
	return cmd
}

func restoreCommand(data *string) *cobra.Command {
	var with, next *passphrase
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the keyring from a backup, in a directory that has none",
		Long: `Makes the keyring of a backup in --data, with a new key of its own: plain, or sealed with
--new-passphrase-file. A directory that has a keyring is refused. Files that are there
already are newer than the backup, and stay.

A backup is older than what was done since. What was revoked stays revoked: a broker
admits nothing before a server has told it what was, and takes that into its keyring.
A grant whose secret part was renewed since is renewed once more by the server, by itself
and within a minute of reaching the broker; until then its calls are refused, and the
part that the backup has counts again. Where no server does so, bivouac grant rotate
does. Grants and servers that came since are not known (bivouac grant create,
bivouac-broker server-code), and credentials have the values of the backup. Codes for
servers that were not used are void.`,
		Example: "  bivouac-broker restore --data /var/lib/bivouac/broker --backup-passphrase-file prompt /mnt/backup/keyring-monday.age",
		Args:    usage.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if with.from == "" {
				return protocol.Errorf(protocol.CodeInvalidArgument, "say what the backup is sealed with: --backup-passphrase-file FILE, or --backup-passphrase-file prompt")
			}
			ask := func() (string, error) { return with.read(with.from, "passphrase of the backup: ", false) }
			c, err := keyring.Restore(args[0], *data, ask, next.choose("passphrase of the keyring"))
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "restored the keyring of %s into %s: root %.12s…, %d grants that were in force, %d credentials, %d servers%s.\n",
				c.MadeAt.UTC().Format(time.RFC3339), *data, c.Fingerprint, c.Grants, c.Credentials, c.Servers, also(c.Beside))
			fmt.Fprintf(cmd.OutOrStdout(), "What was revoked since is refused as soon as a server is reached, and taken into the keyring. Set again what credentials were changed since: bivouac credential set.\n")
			return nil
		},
	}
	with = passphraseFlag(cmd, "backup-passphrase-file", "file that holds the backup's passphrase (0600), or \"prompt\"")
	next = passphraseFlag(cmd, "new-passphrase-file", "seal the keyring's new key with the passphrase of this file (0600), or \"prompt\"")
	return cmd
}

func also(beside []string) string {
	if len(beside) == 0 {
		return ""
	}
	return "; with " + strings.Join(beside, ", ")
}
