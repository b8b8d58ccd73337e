package main

import (
	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
)

// noArguments refuses words that no flag takes, a mistyped command among them.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalidArgument, "%q is no command and no flag of %s; see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
}
