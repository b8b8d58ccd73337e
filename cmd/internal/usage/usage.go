// Package usage is how the daemons' commands judge the words that they are given.
//
// It guarantees that a word which no flag takes is refused with the code of a wrong
// argument and the command that helps. It knows no command.
package usage

import (
	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
)

// Exactly wants n words. Where none is wanted, one that comes is a mistyped command.
func Exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == n:
			return nil
		case n == 0:
			return protocol.Errorf(protocol.CodeInvalidArgument, "%q is no command and no flag of %s; see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
		}
		return protocol.Errorf(protocol.CodeInvalidArgument, "usage: %s; see %s --help", cmd.UseLine(), cmd.CommandPath())
	}
}
