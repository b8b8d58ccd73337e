package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/vaultpolicy"
	"bivouac/vaultpolicy/plan"
)

func (a *app) vaultSetup() *cobra.Command {
	var f vaultFlags
	var apply, bare bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Show what a Vault or OpenBao server lacks for this deployment; with --apply, make it",
		Long: `Compares every mount, policy, token role, login role and rate limit that the broker needs
with what the server has, and shows the difference: + is made, ~ is changed, ! stands in
the way and is never touched. Nothing is deleted, and nothing but what is shown is
changed. Without --apply nothing is changed at all; it then ends with 0 where nothing
differs, and with 22 where something does.

With --print it asks no server, and prints everything as commands of the vault command
line, every policy in full: to be reviewed, or taken over into Terraform (--json has the
bodies of the requests).` + asAdmin,
		Example: "  bivouac vault setup\n  bivouac vault setup --apply\n  bivouac vault setup --print --broker-config broker.hcl > setup.sh",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if apply && bare {
				return protocol.Errorf(protocol.CodeInvalidArgument, "--print asks no server and --apply changes one: use one of them")
			}
			file, p, err := a.vaultPlan(cmd.Context(), f, bare)
			if err != nil {
				return err
			}
			if why := file.Unlimited(); why != "" {
				fmt.Fprintf(legible.Writer{W: a.err}, "note: %s\n", why)
			}
			if bare {
				return a.printPlan(file, p)
			}
			return a.setUpVault(cmd.Context(), file, p, apply)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&apply, "apply", false, "make what differs")
	cmd.Flags().BoolVar(&bare, "print", false, "print everything that would be made from nothing; asks no server")
	return cmd
}

// printPlan writes what is made from nothing.
func (a *app) printPlan(file vaultpolicy.File, p plan.Plan) error {
	if a.json {
		return a.printJSON(map[string]any{"items": planned(p)})
	}
	text, err := p.Script(file.Namespace)
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.out, text)
	return err
}

// setUpVault compares, and applies where that is asked for.
func (a *app) setUpVault(ctx context.Context, file vaultpolicy.File, p plan.Plan, apply bool) error {
	admin, err := a.vaultAdmin(file.Config)
	if err != nil {
		return err
	}
	defer admin.Close()
	if admin.ignoresNamespace(ctx) {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s takes no notice of namespaces, and %q would be its root: take the namespace out of broker.hcl and of your environment", admin.Address(), file.Namespace)
	}
	d, err := p.Diff(ctx, admin.Client, admin.token)
	if err != nil {
		return admin.explain(ctx, p, false, err)
	}
	return a.settle(settling{engine: "vault", address: admin.Address(), differ: len(d), shown: d, items: differing(d),
		apply: func(told func(string, bool)) error {
			err := d.Apply(ctx, admin.Client, admin.token, func(x plan.Difference) { told(x.Title(), x.Missing) })
			if err != nil {
				return admin.explain(ctx, d.Plan(), true, err)
			}
			return nil
		},
		next: func() {
			if fetch := file.Fetch(); fetch != "" && slices.ContainsFunc(d, isLogin) {
				fmt.Fprintf(a.err, "\nnext, what the broker logs in with:\n%s\nthen: bivouac vault check%s\n", fetch, file.Flags())
			}
		}}, apply)
}

// isLogin reports a role that the broker logs in with, and that was not there.
func isLogin(d plan.Difference) bool {
	return d.Missing && (d.Kind == "login role" || d.Kind == "token role" && strings.HasSuffix(d.Name, "-broker"))
}

// plannedItem is one thing that a server must have, as a program reads it.
type plannedItem struct {
	Kind    string         `json:"kind"`
	Name    string         `json:"name"`
	Path    string         `json:"path"`
	Without string         `json:"without_it"`
	State   string         `json:"state,omitempty"`   // "missing", "differs" or "in_the_way"
	Changes []itemChange   `json:"changes,omitempty"` // of what differs
	Body    map[string]any `json:"body,omitempty"`    // of the request that makes it
}

// itemChange is a field that differs, in the words of the server's API.
type itemChange struct {
	Field string `json:"field"`
	Have  any    `json:"have"`
	Want  any    `json:"want"`
}

func changing(d plan.Difference) (all []itemChange) {
	body := d.Body()
	for _, c := range d.Changes {
		all = append(all, itemChange{c.Field, c.Have, body[c.Field]})
	}
	return all
}

func itemOf(i plan.Item) plannedItem {
	return plannedItem{Kind: i.Kind, Name: i.Name, Path: i.Path, Without: i.For}
}

func planned(p plan.Plan) []plannedItem {
	all := []plannedItem{}
	for _, i := range p.Items {
		x := itemOf(i)
		x.Body = i.Body()
		all = append(all, x)
	}
	return all
}

func differing(d plan.Diff) []plannedItem {
	all := []plannedItem{}
	for _, i := range d {
		x := itemOf(i.Item)
		switch {
		case i.Missing:
			x.State, x.Body = "missing", i.Body()
		case i.Fixed:
			x.State, x.Changes = "in_the_way", changing(i)
		default:
			x.State, x.Changes = "differs", changing(i)
		}
		all = append(all, x)
	}
	return all
}
