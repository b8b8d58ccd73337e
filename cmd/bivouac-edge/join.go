package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"bivouac/edge"
	"bivouac/edge/owner"
	"bivouac/edge/state"
)

func joinCommand(dir *string) *cobra.Command {
	var name string
	var folders, toolchains []string
	policy := owner.Default()
	cmd := &cobra.Command{
		Use:   "join URL CODE",
		Short: "Enrol this machine with the code of an invitation (bivouac edge invite)",
		Long: "Enrols this machine and writes edge.hcl, its owner's policy, which allows nothing on the machine but what the flags say.\n" +
			"It ends only after the server has taken a first authenticated call. Repeating it with the same code is safe.",
		Example: "  bivouac-edge join https://bivouac.example.org:7401 join_… --allow-folder notes=/home/me/notes:rw",
		Args:    arguments(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, flag := range folders {
				f, err := owner.FolderFlag(flag)
				if err != nil {
					return err
				}
				policy.Folders = append(policy.Folders, f)
			}
			for _, flag := range toolchains {
				t, err := owner.ToolchainFlag(flag)
				if err != nil {
					return err
				}
				policy.Toolchains = append(policy.Toolchains, t)
			}
			e, err := edge.Join(cmd.Context(), edge.JoinParams{
				Server: args[0], Code: args[1], Name: name, State: *dir, Policy: policy, Version: version,
			})
			if err != nil {
				return err
			}
			return joined(cmd.OutOrStdout(), *dir, e)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of this machine (default: the invitation's)")
	cmd.Flags().StringArrayVar(&folders, "allow-folder", nil, "name=/path[:r|:rw], a folder that agents may read, or also write; may be repeated")
	cmd.Flags().StringArrayVar(&toolchains, "toolchain", nil, "name=/path, a host folder that sandboxed code sees read-only; may be repeated")
	cmd.Flags().IntVar(&policy.Slots, "slots", policy.Slots, "turns that may run at once in sandboxes; 0 refuses them")
	return cmd
}

func joined(out io.Writer, dir string, e state.Enrolment) error {
	d, err := state.Open(dir)
	if err == nil {
		_, err = fmt.Fprintf(out, "joined %s as runner %s\nits policy is %s; start it with: %s\n", e.Server, e.Runner, d.Policy(), d.Command("run"))
	}
	return err
}
