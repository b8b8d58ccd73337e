package main

import (
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/devdir"
	"bivouac/cmd/internal/usage"
	"bivouac/edge/doctor"
	"bivouac/edge/sandbox/bubblewrap"
	"bivouac/edge/state"
)

func doctorCommand(dir *string) *cobra.Command {
	var asJSON, strict bool
	var worker string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check all that this runner stands on, and say what mends what is wrong",
		Long: "Checks state, certificate, edge.hcl, the way to server and broker over UDP and TCP, clock, sandbox and limits,\n" +
			"git, toolchains, worker, disk and the running daemon. It changes nothing, and works without server or daemon.\n" +
			"It ends with 0 unless something does not work; with --strict also a warning counts.",
		Args: usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := doctor.Config{State: *dir, Worker: worker}
			if devdir.Addresses(*dir) != nil {
				cfg.Starter = devdir.Command(filepath.Dir(filepath.Clean(*dir)))
			}
			if s, why := supervisors(worker); s != nil {
				scope := "bivouac-doctor"
				if d, err := state.Open(*dir); err == nil {
					scope = groupsOf(d)
				}
				cfg.Sandbox = bubblewrap.New(bubblewrap.Config{CgroupParent: scope, Log: slog.New(slog.DiscardHandler)})
			} else {
				cfg.SandboxProblem = why
			}
			r := doctor.Examine(cmd.Context(), cfg)
			return r.Show(cmd.OutOrStdout(), asJSON, strict)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&strict, "strict", false, "fail for warnings too")
	cmd.Flags().StringVar(&worker, "worker", beside("bivouac-worker"), "the bivouac-worker binary for sandboxed turns")
	return cmd
}
