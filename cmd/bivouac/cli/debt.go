package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// debtCommand shows what INV-18 promises to show.
func (a *app) debtCommand() *cobra.Command {
	var limit int32
	cmd := &cobra.Command{
		Use:   "debt",
		Short: "What has ended and is not known to be gone",
		Long: `Whatever was started is cleaned up when it ends: attempts on machines, parts of
budgets at brokers, bytes that nobody may read any more. What could not be yet is
listed here, oldest first, with what the last try found, and is tried again until
it is done. For admins.`,
		Args: cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Runners.ListCleanups(ctx, &apiv1.ListCleanupsRequest{Page: &apiv1.Page{Limit: limit}})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetCleanups()), "nothing is left to clean up", func(w io.Writer) { showDebt(w, res) })
		}),
	}
	cmd.Flags().Int32Var(&limit, "limit", 50, "how many")
	return cmd
}

func showDebt(w io.Writer, res *apiv1.ListCleanupsResponse) {
	t := newTable(w, "KIND", "SUBJECT", "SINCE", "TRIES", "EVIDENCE")
	for _, c := range res.GetCleanups() {
		t.row(c.GetKind(), c.GetSubject(), ago(c.GetSince()), fmt.Sprint(c.GetTries()), c.GetEvidence())
	}
	t.flush()
	if res.GetNextCursor() != "" {
		fmt.Fprintln(w, "there is more: --limit shows up to 500")
	}
	for _, c := range res.GetCleanups() {
		if c.GetKind() == "attempt" {
			fmt.Fprintf(w, "try: start the machine again, or end its part with bivouac edge revoke; bivouac explain %s names it\n", c.GetSubject())
			return
		}
	}
}
