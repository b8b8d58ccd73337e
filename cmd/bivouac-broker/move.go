package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/assembly"
)

// differs is the end of a dry run that found something to do, as of bivouac vault setup.
const differs = finding.Verdict(protocol.ExitDiffers)

func moveCommand(data *string) *cobra.Command {
	var m assembly.Move
	var open *passphrase
	cmd := &cobra.Command{
		Use:   "vault-move",
		Short: "Bring grants and credentials from the keyring to Vault or OpenBao",
		Long: `Brings every grant and credential of the keyring to the server that the vault block of
broker.hcl names, with the broker's own login there. Grants keep their ids, their people,
their agents and what they give; conversations go on. Revoked ones are listed as revoked.
Without --apply it says what it would do, changes nothing, and ends with 22 while there
is something to move.

Stop the broker first. Where it is cut off, or the server goes away, run the same again:
the keyring holds everything until all of it is there. Then its copies are ended in one
step, and vault-move.jws beside it is the signed receipt: bivouac ledger verify proves it.
A credential that is in the server already is newer, and stays as it is. Without --data it
is the broker of bivouac dev where there is no other; end that with Ctrl-C first.`,
		Example: "  bivouac-broker vault-move\n  bivouac-broker vault-move --apply && bivouac-broker run",
		Args:    usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m.Data, m.Passphrase, m.Out = directory(cmd, *data), open.open(), cmd.OutOrStdout()
			m.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
			left, err := m.Run(cmd.Context())
			switch {
			case err != nil:
				return err
			case left:
				fmt.Fprintln(cmd.ErrOrStderr(), "nothing was changed: --apply does it")
				return differs
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&m.Config, "config", "", "configuration (default broker.hcl in --data)")
	cmd.Flags().BoolVar(&m.Apply, "apply", false, "do it")
	open = passphraseFlag(cmd, "passphrase-file", openUsage)
	return cmd
}
