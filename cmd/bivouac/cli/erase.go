package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// eraseSession takes words away for good, and therefore asks. INV-8.
func (a *app) eraseSession() *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use:   "erase SESSION",
		Short: "Take the words out of a session for good; its record stays",
		Long: `Erases prompts, answers, arguments, results and files of a session whose turns have
all ended, and closes it. Fixed tombstones stay in their place, with ids, states,
digests and the event chain, which still verifies: bivouac events SESSION --verify.
Nothing brings the words back.`,
		Example: "  bivouac sessions erase ses_…\n  bivouac sessions erase ses_… --yes",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			got, err := c.Sessions.GetSession(ctx, &apiv1.GetSessionRequest{SessionId: args[0]})
			if err != nil {
				return err
			}
			if !sure {
				s := got.GetSession()
				if err := a.makeSure(ctx, fmt.Sprintf("erase the words of %s (agent %s, %d events) for good?", s.GetId(), plain(s.GetAgent()), s.GetLastSeq())); err != nil {
					return err
				}
			}
			res, err := c.Sessions.EraseSession(ctx, &apiv1.EraseSessionRequest{SessionId: args[0]})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				fmt.Fprintf(w, "%s is erased and %s; its record stays: bivouac events %s --verify\n", args[0], res.GetSession().GetState(), args[0])
			})
		}),
	}
	cmd.Flags().BoolVar(&sure, "yes", false, "do not ask")
	return cmd
}

// makeSure asks on the terminal. Where nobody can answer it refuses: silence is
// no consent.
func (a *app) makeSure(ctx context.Context, question string) error {
	if _, ok := a.in.terminal(); !ok {
		return protocol.Errorf(protocol.CodeFailedPrecondition, "this cannot be taken back, and there is no terminal to ask on: give --yes")
	}
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	line, err := a.in.line(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return protocol.Errorf(protocol.CodeCancelled, "nothing was changed")
}
