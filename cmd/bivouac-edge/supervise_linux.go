package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge"
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
	p := &edge.Processes{Command: []string{self, "supervise", "--worker", worker, "--dir"}, Connect: supervise.Client}
	for _, name := range []string{"PATH", "HOME", "LANG", "TMPDIR", "BIVOUAC_FAULT", "BIVOUAC_FAULT_FILE"} {
		if v, ok := os.LookupEnv(name); ok {
			p.Env = append(p.Env, name+"="+v)
		}
	}
	return p, ""
}

func superviseCommand() *cobra.Command {
	var path, worker string
	cmd := &cobra.Command{
		Use:    "supervise",
		Short:  "Supervise one attempt; started by run",
		Hidden: true,
		Args:   usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := superviseConfig(path, worker)
			if err != nil {
				return err
			}
			return supervise.Run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&path, "dir", "", "directory of the attempt")
	cmd.Flags().StringVar(&worker, "worker", beside("bivouac-worker"), "the bivouac-worker binary")
	return cmd
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
		Backend:    bubblewrap.New(bubblewrap.Config{CgroupParent: groupsOf(dir), Log: log}),
		Report:     attempt.Sandbox(),
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
