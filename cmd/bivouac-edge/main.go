// Command bivouac-edge makes a machine a runner: it joins a server, runs device
// actions and supervises turns in sandboxes, within what the machine's owner
// allows in edge.hcl.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge"
	"bivouac/edge/finding"
	"bivouac/edge/legible"
	"bivouac/edge/metric"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/sandbox"
	"bivouac/edge/sandbox/bubblewrap"
	"bivouac/edge/state"
)

var version = "dev" // set by the build

func main() {
	s := untilSignal(context.Background())
	err := command().ExecuteContext(s.ctx)
	s.cancel(nil)
	var over finding.Verdict
	if errors.As(err, &over) {
		os.Exit(int(over))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bivouac-edge: %s [%s]\n", legible.Text(err.Error()), protocol.CodeOf(err))
		os.Exit(protocol.CodeOf(err).ExitCode())
	}
}

func command() *cobra.Command {
	var dir string
	root := &cobra.Command{
		Use:   "bivouac-edge",
		Short: "Make this machine a runner of Bivouac, within limits that its owner sets",
		Long: `Makes this machine a runner, within limits that its owner sets in edge.hcl.

First start:  bivouac-edge join URL CODE    as bivouac edge invite printed it
              bivouac-edge run
At any time:  bivouac-edge pause            ends everything here, without a network too
              bivouac-edge approvals        what waits for your own yes, where edge.hcl has a second_key`,
		Args:          usage.Exactly(0),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,

		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return findDev(cmd, &dir) },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return protocol.Errorf(protocol.CodeInvalidArgument, "%w; see %s --help", err, cmd.CommandPath())
	})
	root.PersistentFlags().StringVar(&dir, "state", state.Default(), "directory of this runner: key, certificate, edge.hcl, journal; 0700")
	root.AddCommand(joinCommand(&dir), runCommand(&dir), statusCommand(&dir), pauseCommand(&dir), resumeCommand(&dir), probeCommand(&dir), approvalsCommand(&dir), approveCommand(&dir), denyCommand(&dir), doctorCommand(&dir), leaveCommand(&dir), superviseCommand(&dir))
	return root
}

func runCommand(dir *string) *cobra.Command {
	var level slog.Level
	var worker, metrics string
	var endTurns bool
	var enrol enrolFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Work as a runner until interrupted",
		Long: "Connects to the server and works until interrupted. Turns that run in sandboxes go on while it restarts;\n" +
			"a service manager must therefore end only this process (systemd: KillMode=process).",
		Args: usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
			if err := enrol.enrol(cmd.Context(), cmd, *dir, log); err != nil {
				return err
			}
			d, err := state.Open(*dir)
			if err != nil {
				return err
			}
			cfg := edge.Config{State: d, WatchRules: edge.WatchFile, WatchAttempts: edge.WatchFolders, Control: func() (net.Listener, error) { return edge.ListenControl(d) }, Version: version, Log: log, Adapters: protocol.Adapters}
			if cfg.Supervisors, cfg.SandboxProblem = supervisors(worker); cfg.Supervisors != nil {
				cfg.SandboxFunc = func() sandbox.Backend {
					return bubblewrap.New(bubblewrap.Config{CgroupParent: groupsOf(d), Log: log})
				}
				cfg.Sandbox = cfg.SandboxFunc()
				cfg.MissingFunc = edge.Needs{Worker: worker}.Missing
			}
			if metrics != "" {
				if cfg.Metrics, err = metric.Listen(cmd.Context(), metrics, "--metrics"); err != nil {
					return err
				}
				defer cfg.Metrics.Close()
			}
			daemon, err := edge.New(cfg)
			if err != nil {
				return err
			}
			err = daemon.Run(cmd.Context())
			if err == nil && cmd.Context().Err() == nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "ended: this machine has left and is no runner any more")
			}
			if endTurns && cmd.Context().Err() != nil { // and not because another one runs here
				err = errors.Join(err, edge.EndTurns(context.WithoutCancel(cmd.Context()), d, cfg.Supervisors, cfg.Sandbox))
			}
			return err
		},
	}
	enrol.add(cmd)
	cmd.Flags().StringVar(&metrics, "metrics", "", "address of the page of numbers, for Prometheus (default: none)")
	cmd.Flags().TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	cmd.Flags().BoolVar(&endTurns, "end-turns", false, "when it is stopped, end the sandboxes of turns too, but for allocations of their own; their turns are interrupted")
	cmd.Flags().StringVar(&worker, "worker", beside("bivouac-worker"), "the bivouac-worker binary for sandboxed turns")
	return cmd
}

// groupsOf is where this runner makes control groups: in a place of its own, within
// the folder that its owner was given, if any. A daemon and its supervisors have to
// agree, so a file with mistakes counts as it was before.
func groupsOf(d *state.Dir) string {
	file, _ := d.PolicyInForce()
	p, err := owner.Load(file, d.Path())
	if err != nil {
		p, _ = owner.Load(d.GoodPolicy(), d.Path()) // the daemon says so in its status
	}
	return path.Join(p.Cgroup, d.Scope())
}

// beside is a binary next to this one.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}
