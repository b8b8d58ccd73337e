package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"bivouac/edge/finding"
	"bivouac/jobs"
)

func (a *app) nomadCommand() *cobra.Command {
	return group(&cobra.Command{Use: "nomad", Short: "Set up and check a Nomad that runs runners"},
		a.nomadSetup(), a.nomadCheck())
}

const asNomadAdmin = `

You are whoever your environment says, as with the nomad command line: NOMAD_ADDR,
NOMAD_CACERT, NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY, and the token of NOMAD_TOKEN, which
must be a management token. No token is taken from an argument.`

// nomadSite is what the flags name.
func nomadSite(cmd *cobra.Command) *jobs.Site {
	s := &jobs.Site{}
	cmd.Flags().StringVar(&s.Namespace, "namespace", "agents", "namespace of the jobs")
	cmd.Flags().StringSliceVar(&s.Pools, "node-pool", []string{"agents"}, "node pool whose nodes run runners; may be repeated")
	return s
}

func (a *app) nomadSetup() *cobra.Command {
	var apply bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Show what a Nomad lacks to run runners; with --apply, make it",
		Long: `Compares the namespace with the extra claims that identities of runners need, the node
pools, and two policies (bivouac-server for the server's token, bivouac-deploy for who runs
the job files) with what Nomad has, and shows the difference: + is made, ~ is changed.
Nothing is deleted, and what else stands in a namespace stays. Without --apply nothing is
changed; it then ends with 0 where nothing differs, and with 22 where something does.` + asNomadAdmin,
		Example: "  bivouac nomad setup\n  bivouac nomad setup --apply --node-pool gpu --node-pool agents",
		Args:    cobra.NoArgs,
	}
	site := nomadSite(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := jobs.Admin(os.Getenv)
		if err != nil {
			return err
		}
		return cfg.Ask(func(n *jobs.Nomad) error { return a.setUpNomad(cmd.Context(), cfg.Address, n, *site, apply) })
	}
	cmd.Flags().BoolVar(&apply, "apply", false, "make what differs")
	return cmd
}

// nomadItem is one difference, as a program reads it.
type nomadItem struct {
	Kind    string   `json:"kind"`
	Name    string   `json:"name"`
	State   string   `json:"state"` // "missing" or "differs"
	Changes []string `json:"changes,omitempty"`
	Without string   `json:"without_it"`
}

func (a *app) setUpNomad(ctx context.Context, address string, n *jobs.Nomad, s jobs.Site, apply bool) error {
	all, err := n.Diff(ctx, s)
	if err != nil {
		return err
	}
	items := []nomadItem{}
	for _, d := range all {
		state := "differs"
		if d.Missing {
			state = "missing"
		}
		items = append(items, nomadItem{d.Kind, d.Name, state, d.Changes, d.Without})
	}
	return a.settle(settling{engine: "nomad", address: address, differ: len(all), shown: all, items: items,
		apply: func(told func(string, bool)) error {
			return n.Apply(ctx, all, func(d jobs.Difference) { told(d.Title(), d.Missing) })
		}}, apply)
}

func (a *app) nomadCheck() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what a Nomad lacks to run runners, and what does not work without it",
		Long: `Asks Nomad by your token: whether it answers and its clock agrees, its version, access
control, mutual TLS between its agents, the nodes of the pools, and what setup makes. It
changes nothing. It ends with 0 unless something does not work; with --strict also a
warning counts. bivouac-server doctor sees the same from the server, by the server's token.` + asNomadAdmin,
		Example: "  bivouac nomad check\n  bivouac nomad check --node-pool gpu --json",
		Args:    cobra.NoArgs,
	}
	site := nomadSite(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := jobs.Admin(os.Getenv)
		if err != nil {
			return err
		}
		r := finding.From("here")
		cfg.ExamineAll(cmd.Context(), r, *site)
		return a.show(r, strict)
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "fail for warnings too")
	return cmd
}
