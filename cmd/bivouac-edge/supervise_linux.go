package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge"
	"bivouac/edge/allocation"
	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/relay"
	"bivouac/edge/sandbox/bubblewrap"
	"bivouac/edge/state"
	"bivouac/edge/supervise"
)

// supervisors of this binary: `bivouac-edge supervise` processes.
func supervisors(worker string) (edge.Spawner, string) {
	self, err := os.Executable()
	if err != nil {
		return nil, "this program cannot find itself: " + err.Error()
	}
	return &edge.Processes{Command: append([]string{self}, superviseArguments(worker)...), Env: superviseEnv(), Connect: supervise.Client}, ""
}

// superviseArguments of a supervisor in a directory.
func superviseArguments(worker string, dir ...string) []string {
	return append([]string{"supervise", "--worker", worker, "--dir"}, dir...)
}

// superviseEnv is the whole environment of a supervisor. There is no secret in it.
func superviseEnv() (env []string) {
	for _, name := range []string{"PATH", "HOME", "LANG", "TMPDIR", "BIVOUAC_FAULT", "BIVOUAC_FAULT_FILE"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func superviseCommand(dir *string) *cobra.Command {
	var path, worker string
	var task allocation.Task
	cmd := &cobra.Command{
		Use:   "supervise",
		Short: "Supervise one attempt; started by run, or by Nomad as the task of an allocation",
		Long: "Runs one turn in sandboxes. It is not started by hand.\n\n" +
			"--dir DIR            by bivouac-edge run, for a turn in the runner's own task\n" +
			"--allocation JOB     by Nomad, as the task of a job that bivouac-server registers for a turn of an agent with\n" +
			"                     allocation = \"own\". It waits until the bivouac-edge of --state has the turn's offer, takes\n" +
			"                     the turn once and for all, and runs it. Started again, it finds that it was taken, says so,\n" +
			"                     and ends with 0; so it does when nothing was to be taken within --wait. On SIGTERM the\n" +
			"                     turn is interrupted and goes on from its last checkpoint in another allocation.",
		Hidden: true,
		Args:   usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case task.Job != "" && path != "", task.Job == "" && path == "":
				return protocol.Errorf(protocol.CodeInvalidArgument, "supervise takes either --dir or --allocation; see %s --help", cmd.CommandPath())
			case path != "" && cmd.Flags().Changed("wait"):
				return protocol.Errorf(protocol.CodeInvalidArgument, "--wait goes with --allocation alone; see %s --help", cmd.CommandPath())
			case task.Job != "":
				task.State, task.InJob, task.Alloc = *dir, os.Getenv("NOMAD_JOB_ID"), os.Getenv("NOMAD_ALLOC_ID")
				task.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
				return superviseTask(cmd.Context(), task, worker)
			}
			return superviseDir(cmd.Context(), path, worker)
		},
	}
	cmd.Flags().StringVar(&path, "dir", "", "directory of the attempt")
	cmd.Flags().StringVar(&task.Job, "allocation", "", "id of Nomad's job, whose task this is")
	cmd.Flags().DurationVar(&task.Wait, "wait", allocation.DefaultWait, "how long the turn's offer is waited for, with --allocation")
	cmd.Flags().StringVar(&worker, "worker", beside("bivouac-worker"), "the bivouac-worker binary")
	return cmd
}

// superviseDir runs the attempt of a directory, or ends what is left of it. A signal to
// the task of an allocation interrupts the attempt; who was started by the daemon ends.
func superviseDir(ctx context.Context, path, worker string) error {
	cfg, err := superviseConfig(path, worker)
	if err != nil {
		return err
	}
	_, attempt, err := state.OpenAttempt(path)
	if err != nil {
		return err
	}
	if _, awaited := attempt.Allocation(); !awaited {
		return supervise.Run(ctx, cfg)
	}
	mark, _, err := attempt.Mark()
	if err != nil {
		return err
	}
	taker := mark.Process == state.Self()
	if !taker && mark.Alive() {
		return protocol.Errorf(protocol.CodeAlreadyExists, "the supervisor of attempt %s runs as process %d, in Nomad's allocation %s", attempt.ID, mark.PID, mark.Alloc)
	}
	release, err := attempt.Supervise()
	if err != nil {
		return err
	}
	defer release()
	if taker {
		cfg.HandOver = ctx.Done()
		return supervise.Run(context.WithoutCancel(ctx), cfg)
	}
	cfg.Recover = true
	return supervise.Run(ctx, cfg)
}

// superviseConfig reads what the daemon left in the attempt's directory and the
// owner's policy above it.
func superviseConfig(path, worker string) (supervise.Config, error) {
	var none supervise.Config
	dir, attempt, err := state.OpenAttempt(path)
	if err != nil {
		return none, err
	}
	nonce, err := attempt.BootNonce()
	if err != nil {
		return none, protocol.Errorf(protocol.CodeFailedPrecondition, "%s has no boot nonce: it is not the directory of a claimed attempt", path)
	}
	file, _ := dir.PolicyInForce()
	policy, err := owner.Load(file, dir.Path())
	if err != nil { // the daemon says so in its status
		policy, err = owner.Load(dir.GoodPolicy(), dir.Path())
	}
	if err != nil {
		return none, err
	}
	root, err := dir.Root()
	if err != nil {
		return none, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	cfg := supervise.Config{
		Dir: attempt.Path(), Attempt: attempt.ID, BootNonce: nonce, WorkerPath: worker,
		Backend:    bubblewrap.New(bubblewrap.Config{CgroupParent: groupsOf(dir), SeenFunc: attempt.Sandbox, Log: log}),
		Dial:       relay.Dial(link.Config{Trust: link.Trust{Role: identity.RoleBroker, Root: root, Now: dir.Now}, Certificate: dir.Certificate}),
		NarrowFunc: policy.Limits.Narrow, StatusCommand: dir.Command("status"),
		RefuseEgress: policy.RefuseEgress,
		Log:          log,
	}
	for _, c := range policy.Caches {
		cfg.Caches = append(cfg.Caches, supervise.Cache(c))
	}
	for _, t := range policy.Toolchains {
		cfg.Toolchains = append(cfg.Toolchains, supervise.Toolchain(t))
	}
	return cfg, nil
}
