package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge"
	"bivouac/edge/legible"
	"bivouac/edge/protocol"
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
			return probed(cmd.OutOrStdout(), d, s, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// probed says over what the link runs. No link is a failure of the command too, in
// JSON as well: who probes wants to know whether there is one.
func probed(out io.Writer, d *state.Dir, s edge.Status, asJSON bool) (err error) {
	if asJSON {
		err = json.NewEncoder(out).Encode(s)
	}
	switch {
	case err != nil:
	case !s.Connected:
		return protocol.Errorf(protocol.CodeUnavailable, "not connected to %s: %s; what is in the way says: %s", s.Server, cmp.Or(s.LastError, "the daemon is still trying"), d.Command("doctor"))
	case asJSON:
	case s.QUICProblem != "":
		_, err = fmt.Fprintf(out, "the link stays on %s: %s\n", s.Transport, legible.Line(s.QUICProblem))
	default:
		_, err = fmt.Fprintf(out, "the link runs over %s\n", s.Transport)
	}
	return err
}
