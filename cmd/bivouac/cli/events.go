package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var after int64
	cmd := &cobra.Command{
		Use:   "events SESSION|TURN",
		Short: "What happened, event by event, with the hash chain checked",
		Long: `Prints the durable events of a session, or of one turn. With --follow it goes on
with what happens next and survives a lost connection; --after resumes behind a
sequence number that you have seen.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			session, turn := args[0], ""
			if _, err := protocol.ParseID[protocol.TurnKind](args[0]); err == nil {
				turn = args[0]
				res, err := c.Turns.GetTurn(ctx, &apiv1.GetTurnRequest{TurnId: turn})
				if err != nil {
					return err
				}
				session = res.GetTurn().GetSessionId()
			}
			if follow {
				return a.followEvents(ctx, c, session, turn, after)
			}
			return a.listEvents(ctx, c, session, turn, after)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens next")
	cmd.Flags().Int64Var(&after, "after", 0, "only events behind this sequence number")
	return cmd
}

func (a *app) listEvents(ctx context.Context, c *client.Client, session, turn string, after int64) error {
	const page = 500
	check := chain{whole: turn == ""}
	for {
		res, err := c.Events.ListEvents(ctx, &apiv1.ListEventsRequest{SessionId: session, TurnId: turn, AfterSeq: after, Limit: page})
		if err != nil {
			return err
		}
		for _, e := range res.GetEvents() {
			if err := check.next(e); err != nil {
				return err
			}
			if err := a.print(e, func(w io.Writer) { showEvent(w, e) }); err != nil {
				return err
			}
			after = e.GetSeq()
		}
		if len(res.GetEvents()) < page {
			return nil
		}
	}
}

func (a *app) followEvents(ctx context.Context, c *client.Client, session, turn string, after int64) error {
	check := chain{whole: true}
	err := c.Watch(ctx, session, after, func(m *apiv1.WatchEventsResponse) error {
		e := m.GetEvent()
		if e == nil {
			return nil
		}
		if err := check.next(e); err != nil {
			return err
		}
		if turn != "" && e.GetTurnId() != turn {
			return nil
		}
		return a.print(e, func(w io.Writer) { showEvent(w, e) })
	})
	if ctx.Err() != nil {
		return nil // Ctrl-C is how a person stops following
	}
	return err
}

// chain checks that each event's hash covers its stored bytes and the event
// before it. INV-8.
type chain struct {
	whole bool // consecutive events of a session
	last  []byte
}

func (c *chain) next(e *apiv1.Event) error {
	sum := sha256.New()
	sum.Write(e.GetPrevHash())
	sum.Write(e.GetStored())
	if !bytes.Equal(sum.Sum(nil), e.GetHash()) || c.whole && c.last != nil && !bytes.Equal(c.last, e.GetPrevHash()) {
		return protocol.Errorf(protocol.CodeDataLoss,
			"event %d of %s does not fit its hash chain: the record was altered; keep a copy of the store and tell the admin", e.GetSeq(), e.GetSessionId())
	}
	c.last = e.GetHash()
	return nil
}

func showEvent(w io.Writer, e *apiv1.Event) {
	ref := e.GetTurnId()
	for _, id := range []string{e.GetApprovalId(), e.GetActionId(), e.GetAttemptId()} {
		if id != "" {
			ref = id
			break
		}
	}
	fmt.Fprintf(w, "%5d  %s  %-20s %-30s %s\n", e.GetSeq(), e.GetAt().AsTime().Local().Format("15:04:05.000"), e.GetType(), ref, clip(e.GetData(), 160))
}
