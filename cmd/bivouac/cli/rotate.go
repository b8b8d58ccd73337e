package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) grantRotate() *cobra.Command {
	var receipt string
	cmd := &cobra.Command{
		Use:   "rotate GRANT",
		Short: "Renew the secret part of a grant; what stands on it goes on",
		Long: `Renews what a grant is made of: the key with which the broker opens it, and in Vault or
OpenBao its token. Whoever holds an older copy, of the server's database or of a backup,
can do nothing with it any more. The grant keeps its id and what it gives, and ends
nothing: conversations and turns go on, and each says so as grant.rotated in its events.

The new part is in force before the old one ends. Where the broker is away, or something
stops in between, one of the two counts, and the server goes on by itself: bivouac grant
show says since when, bivouac debt what is left to do.`,
		Example: "  bivouac grant rotate grt_01…\n  bivouac grant rotate grt_01… --receipt renewed.jws",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Grants.RotateGrant(ctx, &apiv1.RotateGrantRequest{GrantId: args[0]})
			if err != nil {
				return err
			}
			if err := a.keepReceipt(receipt, res.GetReceipt()); err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				g := res.GetGrant()
				fmt.Fprintf(w, "%s  renewed: the old secret part is refused; %s goes on with %s\n", g.GetId(), plain(g.GetAgent()), orNone(g.GetCredentials()))
				if n := len(res.GetSessions()); n > 0 {
					fmt.Fprintf(w, "%d open session(s) stand on it and go on\n", n)
				}
			})
		}),
	}
	cmd.Flags().StringVar(&receipt, "receipt", "", "write the signed receipt into this file")
	return cmd
}

// showRotation says what became of the last renewal of a grant's secret part.
func showRotation(w io.Writer, g *apiv1.Grant) {
	switch {
	case g.GetRotatingSince() != nil:
		fmt.Fprintf(w, "its secret part is being renewed, since %s\n", ago(g.GetRotatingSince()))
	case g.GetRotatedAt() != nil:
		fmt.Fprintf(w, "its secret part was renewed %s\n", ago(g.GetRotatedAt()))
	}
}
