package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// errEnded ends a watch when the followed turn is over.
var errEnded = errors.New("the turn is over")

// newMessageID makes the id under which a prompt may be sent again. INV-15.
func newMessageID() string { return "cli-" + strings.ToLower(rand.Text()) }

// follow prints what a turn does until it ends, and returns it. A lost
// connection resumes; leaving does not stop the turn. Events up to after are
// known to be older than the turn.
func (a *app) follow(ctx context.Context, c *client.Client, t *apiv1.Turn, after int64) (done *apiv1.Turn, shown bool, err error) {
	f := &follower{app: a, client: c, turn: t.GetId()}
	err = c.Watch(ctx, t.GetSessionId(), after, func(m *apiv1.WatchEventsResponse) error { return f.handle(ctx, m) })
	f.breakLine()
	if err != nil && !errors.Is(err, errEnded) {
		if ctx.Err() != nil {
			fmt.Fprintf(a.err, "\nleft; the turn goes on: bivouac turns %s, or stop it with bivouac cancel %s\n", t.GetId(), t.GetId())
			return nil, false, protocol.Errorf(protocol.CodeCancelled, "interrupted")
		}
		return nil, false, err
	}
	res, err := c.Turns.GetTurn(ctx, &apiv1.GetTurnRequest{TurnId: t.GetId()})
	if err != nil {
		return nil, false, err
	}
	return res.GetTurn(), f.said, nil
}

// follower turns a stream of events into lines for people.
type follower struct {
	app    *app
	client *client.Client
	turn   string
	inText bool // text deltas have begun a line
	said   bool // the current answer was shown as deltas
	active bool
}

func (f *follower) handle(ctx context.Context, m *apiv1.WatchEventsResponse) error {
	if f.app.json {
		return f.handleJSON(m)
	}
	if d := m.GetTextDelta(); d != "" && f.active {
		fmt.Fprint(f.app.out, harmless(d))
		f.inText, f.said = true, true
		return nil
	}
	e := m.GetEvent()
	if e == nil || e.GetTurnId() != f.turn {
		return nil
	}
	switch e.GetType() {
	case "turn.activated":
		f.active = true
	case "turn.ended":
		return errEnded
	case "approval.requested":
		f.breakLine()
		return f.approval(ctx, e.GetApprovalId())
	case "model.called":
		f.said = false
	case "model.answered":
		f.breakLine()
	case "turn.state", "turn.queued", "turn.checkpoint":
	default:
		f.breakLine()
		fmt.Fprintf(f.app.err, "  · %-18s %s\n", e.GetType(), clip(e.GetData(), 120))
	}
	return nil
}

// handleJSON passes durable events on as they are.
func (f *follower) handleJSON(m *apiv1.WatchEventsResponse) error {
	e := m.GetEvent()
	if e == nil || e.GetTurnId() != f.turn {
		return nil
	}
	if err := f.app.print(e, nil); err != nil {
		return err
	}
	if e.GetType() == "turn.ended" {
		return errEnded
	}
	return nil
}

// approval shows what waits, and asks when there is somebody to ask.
func (f *follower) approval(ctx context.Context, id string) error {
	got, err := f.client.Approvals.GetApproval(ctx, &apiv1.GetApprovalRequest{ApprovalId: id})
	if err != nil {
		return err
	}
	ap := got.GetApproval()
	if ap.GetState() != "PENDING" {
		return nil // decided before we came
	}
	showApproval(f.app.err, ap)
	if !f.app.interactive() {
		return nil
	}
	fmt.Fprint(f.app.err, "allow this? [y/N] ")
	line, err := bufio.NewReader(f.app.in).ReadString('\n')
	if err != nil && line == "" {
		return nil
	}
	yes := strings.EqualFold(strings.TrimSpace(line), "y") || strings.EqualFold(strings.TrimSpace(line), "yes")
	_, err = f.client.Approvals.DecideApproval(ctx, &apiv1.DecideApprovalRequest{ApprovalId: id, Digest: ap.GetDigest(), Approve: yes})
	return err
}

func (f *follower) breakLine() {
	if f.inText && !f.app.json {
		fmt.Fprintln(f.app.out)
		f.inText = false
	}
}

// interactive reports a person at both ends.
func (a *app) interactive() bool {
	in, ok := a.in.(*os.File)
	return ok && term.IsTerminal(int(in.Fd()))
}

// finish prints how a turn ended; anything but completed is a failure of the
// command too.
func (a *app) finish(t *apiv1.Turn, answerShown bool) error {
	if err := a.print(t, func(w io.Writer) {
		if t.GetState() == "COMPLETED" {
			if !answerShown && t.GetAnswer() != "" {
				fmt.Fprintln(w, harmless(strings.TrimSpace(t.GetAnswer())))
			}
			return
		}
		fmt.Fprintf(a.err, "%s  %s (%s): %s\n", t.GetId(), t.GetState(), plain(t.GetReason()), harmless(t.GetMessage()))
	}); err != nil {
		return err
	}
	switch t.GetState() {
	case "COMPLETED":
		return nil
	case "UNKNOWN":
		return exitError{protocol.CodeOutcomeUnknown.ExitCode()}
	case "CANCELLED":
		return exitError{protocol.CodeCancelled.ExitCode()}
	}
	if code := protocol.Code(t.GetReason()); code.ExitCode() != 1 {
		return exitError{code.ExitCode()}
	}
	return exitError{1}
}

// submit sends a prompt, and says where in the queue it is.
func (a *app) submit(ctx context.Context, c *client.Client, req *apiv1.SubmitTurnRequest) (*apiv1.Turn, error) {
	if req.MessageId == "" {
		req.MessageId = newMessageID()
	}
	res, err := c.Turns.SubmitTurn(ctx, req)
	if err != nil {
		return nil, err
	}
	t := res.GetTurn()
	if !a.json && t.GetPosition() > 1 {
		fmt.Fprintf(a.err, "%s waits as number %d, about %s\n", t.GetId(), t.GetPosition(),
			(time.Duration(res.GetEstimatedWaitMs()) * time.Millisecond).Round(time.Second))
	}
	return t, nil
}
