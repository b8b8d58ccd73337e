package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) eventsCommand() *cobra.Command {
	var follow, verify bool
	var after int64
	cmd := &cobra.Command{
		Use:   "events SESSION|TURN",
		Short: "What happened, event by event, with the hash chain checked",
		Long: `Prints the durable events of a session, or of one turn. With --follow it goes on
with what happens next, until the session or the turn ends, and survives a lost
connection; --after resumes behind a sequence number that you have seen.

The hash chain of what is printed is checked here. --verify has the server prove the
whole record of the session from its rows: the chain to its end, so that a tail that
was cut off shows, and every payload against its digest.`,
		Example: "  bivouac events trn_…\n  bivouac --json events --follow ses_… --after 120\n  bivouac events ses_… --verify",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			l := eventLog{app: a, session: args[0], after: after}
			if isID(protocol.TurnKind{}, args[0]) {
				res, err := c.Turns.GetTurn(ctx, &apiv1.GetTurnRequest{TurnId: args[0]})
				if err != nil {
					return err
				}
				l.turn, l.session, l.over = args[0], res.GetTurn().GetSessionId(), res.GetTurn().GetEndedAt() != nil
			}
			if verify && (follow || after != 0) {
				return protocol.Errorf(protocol.CodeInvalidArgument, "--verify proves the whole record: give it without --follow and --after")
			}
			if verify {
				return l.verify(ctx, c)
			}
			if follow {
				return l.follow(ctx, c)
			}
			return l.list(ctx, c)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens next")
	cmd.Flags().BoolVar(&verify, "verify", false, "prove the whole record of the session instead of printing it")
	cmd.Flags().Int64Var(&after, "after", 0, "only events behind this sequence number")
	return cmd
}

// eventLog is what one call of bivouac events shows.
type eventLog struct {
	*app
	session, turn string // turn: only its events
	over          bool   // the turn has ended
	after         int64
}

func (l eventLog) list(ctx context.Context, c *client.Client) error {
	const page = 500
	check := chain{whole: l.turn == ""}
	for {
		res, err := c.Events.ListEvents(ctx, &apiv1.ListEventsRequest{SessionId: l.session, TurnId: l.turn, AfterSeq: l.after, Limit: page})
		if err != nil {
			return err
		}
		for _, e := range res.GetEvents() {
			if err := check.next(e); err != nil {
				return err
			}
			if err := l.print(e, func(w io.Writer) { showEvent(w, e) }); err != nil {
				return err
			}
			l.after = e.GetSeq()
		}
		if len(res.GetEvents()) < page {
			return nil
		}
	}
}

// verify is one call: the payloads' salts never leave the server.
func (l eventLog) verify(ctx context.Context, c *client.Client) error {
	res, err := c.Events.VerifyEvents(ctx, &apiv1.VerifyEventsRequest{SessionId: l.session})
	if err != nil {
		return err
	}
	return l.print(res, func(w io.Writer) {
		fmt.Fprintf(w, "%s holds: %d events, chained without a gap, every payload as it was recorded\nlast hash %x\n", l.session, res.GetEvents(), res.GetLastHash())
	})
}

func (l eventLog) follow(ctx context.Context, c *client.Client) error {
	check := chain{whole: true}
	err := c.Watch(ctx, l.session, l.after, func(m *apiv1.WatchEventsResponse) error {
		l.connectionBack()
		if e := m.GetEvent(); e != nil {
			return l.next(&check, e)
		}
		if m.GetCaughtUpSeq() > 0 && l.over {
			return errEnded
		}
		return nil
	})
	if ctx.Err() != nil || errors.Is(err, errEnded) {
		return nil // Ctrl-C is how a person stops following
	}
	return err
}

func (l eventLog) next(check *chain, e *apiv1.Event) error {
	if err := check.next(e); err != nil {
		return err
	}
	if l.turn != "" && e.GetTurnId() != l.turn {
		return nil
	}
	if err := l.print(e, func(w io.Writer) { showEvent(w, e) }); err != nil {
		return err
	}
	if l.turn != "" && e.GetType() == "turn.ended" {
		return errEnded
	}
	return nil
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
	var d struct {
		Status string `json:"status"`
	}
	if e.GetType() == "tool.finished" && json.Unmarshal([]byte(e.GetData()), &d) == nil && d.Status != "ok" {
		if why := whyOf(e); why != "" {
			fmt.Fprintf(w, "       why%s\n", why)
		}
	}
}
