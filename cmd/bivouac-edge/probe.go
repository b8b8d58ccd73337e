package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge"
	"bivouac/edge/state"
)

func probeCommand(dir *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Try now whether UDP gets through, and move the link to QUIC when it does",
		Long: "The daemon looks for UDP by itself, less and less often while a network eats it.\n" +
			"Use this when you have just opened the port: work that runs does not notice.",
		Args: usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := state.Open(*dir)
			if err != nil {
				return err
			}
			s, err := edge.Probe(cmd.Context(), d)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(s)
			}
			switch {
			case !s.Connected:
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "not connected: %s\n", s.LastError)
			case s.QUICProblem != "":
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "the link stays on %s: %s\n", s.Transport, s.QUICProblem)
			default:
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "the link runs over %s\n", s.Transport)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
