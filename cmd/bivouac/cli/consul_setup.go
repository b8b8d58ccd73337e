package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"bivouac/consul/intentions"
	"bivouac/consul/plan"
	"bivouac/edge/protocol"
)

func (a *app) consulSetup() *cobra.Command {
	var f consulFlags
	var apply, bare bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Show what Consul lacks for this deployment; with --apply, make it",
		Long: `Compares what the broker needs with what Consul has, and shows the difference: + is made,
~ is changed, ! stands in the way and is never touched. The broker needs a policy that lets
it read the intentions of its destinations and nothing else, and a role with it; beside
that there is the intention * => * deny, so that what nothing names is closed also where
Consul's own default is open, and the protocol http of the destinations, without which
Consul takes no permissions about single requests. Where the consul block has service {},
the broker may also write its own service, and the server gets a policy and a role of its
own, with the name of its service. Nothing is deleted. Without --apply
nothing is changed; it then ends with 0 where nothing differs, and with 22 where something
does. No token is made: the command that makes the broker's is printed.

With --print it asks no server, and prints everything as commands of the consul command
line: to be reviewed, or taken over into Terraform.` + asConsulAdmin,
		Example: "  bivouac consul setup\n  bivouac consul setup --apply\n  bivouac consul setup --print --broker-config broker.hcl > setup.sh",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if apply && bare {
				return protocol.Errorf(protocol.CodeInvalidArgument, "--print asks no server and --apply changes one: use one of them")
			}
			file, p, err := a.consulPlan(f)
			switch {
			case err != nil:
				return err
			case bare && a.json:
				return a.printJSON(map[string]any{"items": consulItems(p.FromNothing())})
			case bare:
				_, err := io.WriteString(a.out, p.Script())
				return err
			}
			return a.setUpConsul(cmd.Context(), file, p, f.name, apply)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&apply, "apply", false, "make what differs")
	cmd.Flags().BoolVar(&bare, "print", false, "print everything that would be made from nothing; asks no server")
	return cmd
}

// setUpConsul compares, and applies where that is asked for.
func (a *app) setUpConsul(ctx context.Context, file intentions.File, p plan.Plan, name string, apply bool) error {
	admin, err := a.consulAdmin(file)
	if err != nil {
		return err
	}
	defer admin.Close()
	d, open, err := p.Diff(ctx, admin)
	if err != nil {
		return explainConsul(ctx, admin, err)
	}
	if open {
		fmt.Fprintln(a.err, "note: access control of Consul is off: no policy and no role can be made, and whoever reaches it may open every path")
	}
	return a.settle(settling{engine: "consul", address: admin.Address(), differ: len(d), shown: d, items: consulItems(d),
		apply: func(told func(string, bool)) error {
			err := d.Apply(ctx, admin, func(x plan.Difference) { told(x.Title(), x.State == plan.Missing) })
			if err != nil {
				return explainConsul(ctx, admin, err)
			}
			return nil
		},
		next: func() {
			a.sayNext(file, d, name)
		}}, apply)
}

// sayNext prints what is left for a person: tokens, and the word that the server may call
// the broker.
func (a *app) sayNext(file intentions.File, d plan.Diff, name string) {
	any := false
	for _, x := range d {
		if x.Kind != plan.Role || x.State != plan.Missing {
			continue
		}
		any = true
		if x.Name == name {
			fmt.Fprintf(a.err, "\nnext, the broker's token, on its machine and as its user:\n  %s\n", file.Another())
			if file.TokenFile == "" {
				fmt.Fprintln(a.err, "(the consul block names no token_file yet)")
			}
			continue
		}
		fmt.Fprintf(a.err, "\nnext, the server's token, on its machine and as its user, into FILE, which token_file of the consul block in server.hcl names:\n  %s\n", file.MakeToken(x.Name, "FILE"))
	}
	if s := file.Service; any && s != nil {
		fmt.Fprintf(a.err, "\nand the intention with which the server reaches the broker, which nobody makes but you:\n  consul intention create -allow %s %s\n", s.Peer, s.Name)
	}
	if any {
		fmt.Fprintf(a.err, "then: bivouac consul check%s\n", file.Flags())
	}
}

// consulItem is one thing that Consul must have, as a program reads it.
type consulItem struct {
	Kind    plan.Kind  `json:"kind"`
	Name    string     `json:"name"`
	Without string     `json:"without_it"`
	State   plan.State `json:"state"`
	Have    string     `json:"have,omitempty"`
	Want    string     `json:"want"`
}

func consulItems(d plan.Diff) []consulItem {
	all := []consulItem{}
	for _, x := range d {
		all = append(all, consulItem{x.Kind, x.Name, x.For, x.State, x.Have, x.Want})
	}
	return all
}
