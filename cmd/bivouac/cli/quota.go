package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) quotaCommand() *cobra.Command {
	var agent string
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "How much of your quotas is used",
		Long: `What you, your tenant, the machines that you may use and, with --agent, an agent may use
on this server, and what is used of it now. Days are days of UTC. Who runs the server
sets quotas in server.hcl; the owner of a machine narrows its own in edge.hcl.`,
		Example: "  bivouac quota --agent coder",
		Args:    cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Principals.ListQuotas(ctx, &apiv1.ListQuotasRequest{Agent: agent})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetQuotas()), "no quota bounds you on this server", func(w io.Writer) {
				t := newTable(w, "OF", "NAME", "ACTIVE", "ACTIONS", "QUEUED", "A MINUTE", "TOKENS TODAY", "USD TODAY")
				for _, q := range res.GetQuotas() {
					t.row(q.GetScope(), q.GetName(), of(q.GetActiveTurns(), q.GetMaxActiveTurns()), of(q.GetActiveActions(), q.GetMaxActiveActions()), of(q.GetQueuedTurns(), q.GetMaxQueuedTurns()),
						of(q.GetTurnsLastMinute(), q.GetMaxTurnsPerMinute()), of(q.GetTokensToday(), q.GetMaxTokensPerDay()),
						dollars(q.GetCostTodayMicroUsd(), q.GetMaxCostPerDayMicroUsd()))
				}
				t.flush()
			})
		}),
	}
	cmd.Flags().StringVar(&agent, "agent", "", "also the quota of this agent")
	return cmd
}

// of says what is used, and of how much where that is bounded.
func of[N int32 | int64](used, most N) string {
	if most == 0 {
		return fmt.Sprint(used)
	}
	return fmt.Sprintf("%d of %d", used, most)
}

func dollars(used, most int64) string {
	if most == 0 {
		return fmt.Sprintf("%.4f", float64(used)/1e6)
	}
	return fmt.Sprintf("%.4f of %.4f", float64(used)/1e6, float64(most)/1e6)
}
