package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge/protocol"
	"bivouac/server/broker/witness"
)

// ledgerCommand shows and settles what this broker believes of the ledgers.
func ledgerCommand(data *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "The last heads of ledgers that this broker signed, and restores that are accepted",
		Long: `The broker signs the head of a tenant's ledger only when it goes on from the last one
that it signed. A shorter or another one is refused: a database was changed or brought
back, or two servers write one ledger. Both commands work while the broker runs. Without
--data it is the broker of bivouac dev where there is no other.`,
		Args: usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(headsCommand(data), acceptCommand(data))
	return cmd
}

func headsCommand(data *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the last head of every tenant, and where a restored one began anew",
		Args:  usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := witness.Read(directory(cmd, *data))
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(all)
			}
			if len(all) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no ledger was signed yet")
				return nil
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "TENANT\tSEGMENTS\tROOT\tEPOCH\tSEALED")
			for _, s := range all {
				fmt.Fprintf(w, "%s\t%d\t%x\t%d\t%s\n", s.Head.Tenant, s.Head.Size, s.Head.Root[:6], s.Head.Epoch, s.Head.At.UTC().Format(time.RFC3339))
				for _, o := range s.Waiting {
					fmt.Fprintf(w, "  waits for you\t%d\t\t%d\t%s\n", o.Size, o.Epoch, o.At.Format(time.RFC3339))
				}
				for _, r := range s.Restarts {
					fmt.Fprintf(w, "  restored\t%d of %d\t\t%d after %d\t%s\n", r.BeganAgain, r.LostAfter, r.ToEpoch, r.FromEpoch, r.At.Format(time.RFC3339))
				}
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func acceptCommand(data *string) *cobra.Command {
	var epoch uint32
	cmd := &cobra.Command{
		Use:   "accept --epoch N",
		Short: "Say that the store was restored on purpose: its ledgers may begin anew",
		Long: `After bivouac restore a ledger may have lost its end, which this broker signed. It signs
the restored one once you say the epoch that the restore printed, and that the restored
server has shown since it started: bivouac-broker ledger show lists what waits. Each ledger
may break off once in that life; what was signed before stays in the exports that people have.`,
		Example: "  bivouac-broker ledger accept --epoch 849139200",
		Args:    usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if epoch == 0 {
				return protocol.Errorf(protocol.CodeInvalidArgument, "say which restore: --epoch N, as bivouac restore printed it")
			}
			at := directory(cmd, *data)
			if err := witness.Accept(at, epoch); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "the restore with epoch %d is accepted by the broker of %s: its ledgers are signed within seconds\n", epoch, at)
			return nil
		},
	}
	cmd.Flags().Uint32Var(&epoch, "epoch", 0, "of the restored store")
	return cmd
}
