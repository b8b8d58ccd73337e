package cli

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
)

// group makes cmd a command that holds others. Alone it shows them; with a word
// that is none of them it fails, so that a script with a typing mistake does.
func group(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		cmd.SuggestionsMinimumDistance = 2
		hint := ""
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "; did you mean " + cmd.CommandPath() + " " + strings.Join(near, " or ") + "?"
		}
		return protocol.Errorf(protocol.CodeInvalidArgument, "%s has no command %q%s; %s --help lists them", cmd.CommandPath(), args[0], hint, cmd.CommandPath())
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(subs...)
	return cmd
}

// in adds commands to root under a title of its help.
func in(root *cobra.Command, title string, subs ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, sub := range subs {
		sub.GroupID = title
	}
	root.AddCommand(subs...)
}

// explainMistakes gives every complaint about flags and arguments its code, and
// the command that shows how it is done.
func explainMistakes(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%w; see %s --help", err, cmd.CommandPath())
	})
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if e := (*protocol.Error)(nil); err == nil || errors.As(err, &e) {
				return err
			}
			return protocol.Errorf(protocol.CodeInvalidArgument, "%w; it is used as: %s", err, cmd.UseLine())
		}
	}
	for _, sub := range cmd.Commands() {
		explainMistakes(sub)
	}
}

// noSecret refuses more than one argument where a person might put a secret: it
// would stay in the shell's history and show in every list of processes. The
// arguments are not repeated.
func noSecret(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return protocol.Errorf(protocol.CodeInvalidArgument,
				"%s is never taken from an argument, where others can see it; if that was one, make a new one, and use: %s --help", what, cmd.CommandPath())
		}
		if len(args) == 0 {
			return protocol.Errorf(protocol.CodeInvalidArgument, "its argument is missing: %s, with %s in a file or on the terminal; see %s --help", cmd.UseLine(), what, cmd.CommandPath())
		}
		return nil
	}
}
