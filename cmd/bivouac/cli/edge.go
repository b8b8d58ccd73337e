package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) edgeCommand() *cobra.Command {
	return group(&cobra.Command{Use: "edge", Short: "Machines that work for you"},
		a.edgeInvite(), a.edgeList(), a.edgeRevoke(), a.edgeBind(), a.edgeUnbind())
}

func (a *app) edgeInvite() *cobra.Command {
	var req apiv1.CreateJoinCodeRequest
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "invite",
		Short: "A single-use code that adds a machine",
		Long: `Prints the command to run on the other machine. The code works once, for minutes,
and pins this server's root key. What the machine offers is its owner's decision:
edge.hcl there.`,
		Args: cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			if ttl < time.Second { // an unsaid time would be the server's choice
				return protocol.Errorf(protocol.CodeInvalidArgument, "--ttl %s is no time for anybody to join in: give minutes, such as --ttl 10m", ttl)
			}
			req.TtlSeconds = int64(ttl / time.Second)
			res, err := c.Runners.CreateJoinCode(ctx, &req)
			if err != nil {
				return err
			}
			if why := res.GetWarning(); why != "" && !a.json {
				fmt.Fprintf(a.err, "note: %s\n", harmless(why))
			}
			return a.print(res, func(w io.Writer) {
				fmt.Fprintf(w, "on the other machine, within %s:\n\n  %s\n\n", time.Until(res.GetExpiresAt().AsTime()).Round(time.Second), res.GetCommand())
			})
		}),
	}
	cmd.Flags().StringVar(&req.Name, "name", "", "name of the machine")
	cmd.Flags().StringSliceVar(&req.Actions, "action", nil, "what you may use it for: files.list, files.read, files.write, or turn for whole turns in a sandbox (default: all that its owner allows)")
	cmd.Flags().DurationVar(&ttl, "ttl", 10*time.Minute, "how long the code works")
	return cmd
}

func (a *app) edgeList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Your machines, what they offer, and who may use them",
		Args:    cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetRunners()), "no machine yet: bivouac edge invite", func(w io.Writer) { showRunners(w, res.GetRunners()) })
		}),
	}
}

func showRunners(w io.Writer, runners []*apiv1.Runner) {
	t := newTable(w, "ID", "NAME", "STATE", "LINK", "SYSTEM", "SLOTS", "SANDBOX", "ACTIONS", "SEEN")
	for _, r := range runners {
		seen := ago(r.GetLastSeenAt())
		if r.GetConnected() {
			seen = "now"
		}
		t.row(r.GetId(), r.GetName(), runnerState(r), r.GetTransport(), r.GetOs()+"/"+r.GetArch(),
			fmt.Sprintf("%d/%d", r.GetSlotsBusy(), r.GetSlots()), sandboxOf(r), strings.Join(r.GetActions(), " "), seen)
	}
	t.flush()
	for _, r := range runners {
		if r.GetSandboxProblem() != "" {
			fmt.Fprintf(w, "%s takes no turns in sandboxes: %s\n", plain(r.GetName()), harmless(r.GetSandboxProblem()))
		}
		if r.GetRefusesEgress() {
			fmt.Fprintf(w, "%s lets no sandbox read packages: turns that name registries go elsewhere\n", plain(r.GetName()))
		}
		if keys := r.GetSecondKeys(); len(keys) > 0 {
			fmt.Fprintf(w, "%s asks its owner first about %s: with bivouac-edge approve, on that machine\n", plain(r.GetName()), plain(strings.Join(keys, ", ")))
		}
		if r.GetProblem() != "" {
			fmt.Fprintf(w, "%s: %s\n", plain(r.GetName()), harmless(r.GetProblem()))
		}
	}
	for _, r := range runners {
		for _, b := range r.GetBindings() {
			fmt.Fprintf(w, "%s  %s may use %s for %s\n", b.GetId(), plain(b.GetPrincipalName()), plain(r.GetName()), forWhat(b))
		}
	}
}

func forWhat(b *apiv1.Binding) string {
	if len(b.GetActions()) == 0 {
		return "all that its owner allows"
	}
	return strings.Join(b.GetActions(), ", ")
}

func runnerState(r *apiv1.Runner) string {
	switch {
	case r.GetState() != "ACTIVE":
		return strings.ToLower(r.GetState())
	case r.GetPaused():
		return "paused"
	case r.GetConnected():
		return "connected"
	}
	return "offline"
}

func sandboxOf(r *apiv1.Runner) string {
	if r.GetBoundary() == "" {
		return "none"
	}
	return r.GetBoundary() + "+" + r.GetLimits()
}

func (a *app) edgeRevoke() *cobra.Command {
	var free bool
	cmd := &cobra.Command{
		Use:   "revoke MACHINE",
		Short: "End a machine's part in this, now",
		Long: `Ends the machine's certificate, its leases and what runs on it. MACHINE is a name or
an id of bivouac edge list. It may come back only with a new invitation.

A machine that Nomad runs keeps its node, so that the same node is not back at once. With
--free-node another key of that node may enrol, also when the machine was revoked before:
for a node whose key was lost.`,
		Example: "  bivouac edge revoke laptop",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := runnerID(ctx, c, args[0])
			if err != nil {
				return err
			}
			res, err := c.Runners.RevokeRunner(ctx, &apiv1.RevokeRunnerRequest{RunnerId: id, FreeNode: free})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				fmt.Fprintf(w, "%s is %s\n", plain(res.GetRunner().GetName()), res.GetRunner().GetState())
			})
		}),
	}
	cmd.Flags().BoolVar(&free, "free-node", false, "let another key of its Nomad node enrol by workload identity")
	return cmd
}

func (a *app) edgeBind() *cobra.Command {
	var req apiv1.PutBindingRequest
	cmd := &cobra.Command{
		Use:   "bind MACHINE PRINCIPAL",
		Short: "Let a principal use a machine of yours",
		Long: `Lets agents that work for PRINCIPAL use MACHINE for the named actions, as far as the
machine's owner allows them in edge.hcl. Both are names or ids. Binding again replaces
the actions.`,
		Example: "  bivouac edge bind laptop alice --action files.list,files.read",
		Args:    cobra.ExactArgs(2),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) (err error) {
			if req.RunnerId, err = runnerID(ctx, c, args[0]); err != nil {
				return err
			}
			if req.PrincipalId, err = principalID(ctx, c, args[1]); err != nil {
				return err
			}
			res, err := c.Runners.PutBinding(ctx, &req)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				b := res.GetBinding()
				fmt.Fprintf(w, "%s  %s may use %s for %s\n", b.GetId(), plain(b.GetPrincipalName()), b.GetRunnerId(), forWhat(b))
			})
		}),
	}
	cmd.Flags().StringSliceVar(&req.Actions, "action", nil, "files.list, files.read, files.write, or turn for whole turns in a sandbox")
	return cmd
}

func (a *app) edgeUnbind() *cobra.Command {
	return &cobra.Command{
		Use:   "unbind BINDING",
		Short: "Take a binding back",
		Long: `From then on agents of that principal use the machine for nothing; what they have
under way there ends. bivouac edge list shows the bindings of your machines.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Runners.DeleteBinding(ctx, &apiv1.DeleteBindingRequest{BindingId: args[0]})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { fmt.Fprintf(w, "%s is gone\n", args[0]) })
		}),
	}
}
