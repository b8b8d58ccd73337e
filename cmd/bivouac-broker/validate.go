package main

import (
	"cmp"
	"path/filepath"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/server/broker/assembly"
)

func validateCommand(data *string) *cobra.Command {
	var config string
	var asJSON, strict bool
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Read broker.hcl as run does, and say everything that is refused in it",
		Long: `Reads broker.hcl by every rule that counts when the broker starts, its blocks vault and
consul too, and says all that is refused with file and line. It asks nobody, opens no
keyring and starts nothing, so that it serves on any machine; bivouac vault check and
bivouac consul check use it. What else a start stands on, bivouac-broker doctor says. It
ends with 0 unless the broker does not start with the file; with --strict also a warning
counts.`,
		Example: "  bivouac-broker validate\n  bivouac-broker validate --config /etc/bivouac/broker.hcl --json",
		Args:    usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			file := cmp.Or(config, filepath.Join(directory(cmd, *data), assembly.ConfigFile))
			return assembly.Validate(file).Show(cmd.OutOrStdout(), asJSON, strict)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "configuration (default broker.hcl in --data)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&strict, "strict", false, "fail for warnings too")
	return cmd
}
