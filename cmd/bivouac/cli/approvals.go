package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"bivouac/edge/shellword"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) approvalsCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "approvals",
		Short: "What waits for your decision, or for the owner of a machine",
		Args:  cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Approvals.ListApprovals(ctx, &apiv1.ListApprovalsRequest{IncludeDecided: all})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetApprovals())+len(res.GetOwnerQuestions()), "nothing waits for you; bivouac approvals --all shows what was decided", func(w io.Writer) {
				for _, ap := range res.GetApprovals() {
					showApproval(w, ap)
				}
				for _, q := range res.GetOwnerQuestions() {
					showOwnerQuestion(w, q, a.devEdge(q.GetRunnerId()))
				}
			})
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "also decided ones")
	return cmd
}

// showApproval prints everything that the decision binds.
func showApproval(w io.Writer, ap *apiv1.Approval) {
	where := ap.GetDestination()
	if ap.GetRunnerName() != "" {
		where = ap.GetRunnerName()
	}
	fmt.Fprintf(w, "%s  %s  %s on %s, effect %s\n", ap.GetId(), ap.GetState(), plain(ap.GetTool()), plain(where), plain(ap.GetEffect()))
	fmt.Fprintf(w, "  arguments %s\n  digest    %s\n", plain(ap.GetArguments()), plain(ap.GetDigest()))
	if ap.GetDecidedByName() != "" {
		fmt.Fprintf(w, "  decided by %s", plain(ap.GetDecidedByName()))
		if ap.GetReason() != "" {
			fmt.Fprintf(w, ": %s", plain(ap.GetReason()))
		}
		fmt.Fprintln(w)
	}
	if ap.GetState() == "PENDING" {
		fmt.Fprintf(w, "  expires in %s: bivouac approve %s  |  bivouac deny %s\n",
			time.Until(ap.GetExpiresAt().AsTime()).Round(time.Second), ap.GetId(), ap.GetId())
	}
}

// showOwnerQuestion prints what waits for the owner of a machine, and the command to
// type there: nothing here decides it. state is the directory of a runner that is known
// here, that of bivouac dev; of another only its machine knows it.
func showOwnerQuestion(w io.Writer, q *apiv1.OwnerQuestion, state string) {
	at, where := "", "  (with --state DIR where its runner is not in the usual directory)"
	if state != "" {
		at, where = " --state "+shellword.Quote(state), ""
	}
	fmt.Fprintf(w, "%s  WAITING  %s on %s, for the owner of that machine, who holds a second key over it\n", q.GetAttemptId(), plain(q.GetWork()), plain(q.GetRunnerName()))
	if q.GetArguments() != "" {
		fmt.Fprintf(w, "  arguments %s\n", plain(q.GetArguments()))
	}
	fmt.Fprintf(w, "  of turn   %s\n  digest    %s\n", q.GetTurnId(), plain(q.GetDigest()))
	fmt.Fprintf(w, "  asked %s ago, ends in %s; on %s: %s%s  |  %s%s%s\n", time.Since(q.GetAskedAt().AsTime()).Round(time.Second),
		time.Until(q.GetExpiresAt().AsTime()).Round(time.Second), plain(q.GetRunnerName()), plain(q.GetApproveThere()), at, plain(q.GetDenyThere()), at, where)
}

func (a *app) approveCommand() *cobra.Command {
	var digest string
	cmd := &cobra.Command{
		Use:   "approve APPROVAL",
		Short: "Allow one action, exactly as shown",
		Long: `Shows what the approval binds and allows it. The decision names the digest that was
shown; with --digest it must be the one you saw before.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			return a.decide(ctx, c, args[0], digest, true, "")
		}),
	}
	cmd.Flags().StringVar(&digest, "digest", "", "digest that was shown to you")
	return cmd
}

func (a *app) denyCommand() *cobra.Command {
	var reason, digest string
	cmd := &cobra.Command{
		Use:     "deny APPROVAL",
		Short:   "Refuse one action; the agent is told",
		Example: "  bivouac deny apr_… --reason \"ask me in the morning\"",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			return a.decide(ctx, c, args[0], digest, false, reason)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what the agent is told")
	cmd.Flags().StringVar(&digest, "digest", "", "digest that was shown to you")
	return cmd
}

func (a *app) decide(ctx context.Context, c *client.Client, id, digest string, approve bool, reason string) error {
	got, err := c.Approvals.GetApproval(ctx, &apiv1.GetApprovalRequest{ApprovalId: id})
	if err != nil {
		return err
	}
	if digest == "" {
		digest = got.GetApproval().GetDigest()
	}
	res, err := c.Approvals.DecideApproval(ctx, &apiv1.DecideApprovalRequest{ApprovalId: id, Digest: digest, Approve: approve, Reason: reason})
	if err != nil {
		return err
	}
	return a.print(res, func(w io.Writer) { showApproval(w, res.GetApproval()) })
}
