package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) chatCommand() *cobra.Command {
	var agent, session, messageID string
	var fresh, detach bool
	cmd := &cobra.Command{
		Use:   "chat [MESSAGE]",
		Short: "Talk to an agent",
		Long: `With a message: one turn, and its answer on standard output. Without: a
conversation, one line a turn; end it with Ctrl-D. What needs your approval is
shown; on a terminal you are asked, otherwise decide with bivouac approve.

The conversation with an agent goes on where it was; --new starts another one.
Leaving does not stop a turn: bivouac turns shows it.`,
		Args: cobra.ArbitraryArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			s, err := a.session(ctx, c, agent, session, fresh)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				return a.turn(ctx, c, s, &apiv1.SubmitTurnRequest{SessionId: s.GetId(), Prompt: strings.Join(args, " "), MessageId: messageID}, detach)
			}
			return a.converse(ctx, c, s)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&agent, "agent", "assistant", "agent to talk to")
	f.StringVar(&session, "session", "", "session to go on with")
	f.BoolVar(&fresh, "new", false, "start a new session")
	f.BoolVar(&detach, "detach", false, "do not wait: print the turn and leave")
	f.StringVar(&messageID, "message-id", "", "your own id of this message: sending it again returns the same turn")
	return cmd
}

// turn submits one prompt and follows it.
func (a *app) turn(ctx context.Context, c *client.Client, s *apiv1.Session, req *apiv1.SubmitTurnRequest, detach bool) error {
	t, err := a.submit(ctx, c, req)
	if err != nil {
		return err
	}
	if detach {
		return a.print(t, func(w io.Writer) { fmt.Fprintln(w, t.GetId()) })
	}
	done, shown, err := a.follow(ctx, c, t, s.GetLastSeq())
	if err != nil {
		return err
	}
	return a.finish(done, shown)
}

// converse reads a line a turn.
func (a *app) converse(ctx context.Context, c *client.Client, s *apiv1.Session) error {
	if a.interactive() {
		fmt.Fprintf(a.err, "%s with %s. Ctrl-D ends.\n", s.GetId(), s.GetAgent())
	}
	lines := bufio.NewScanner(a.in)
	lines.Buffer(nil, 1<<20)
	for {
		if a.interactive() {
			fmt.Fprint(a.err, "> ")
		}
		if !lines.Scan() {
			return lines.Err()
		}
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		got, err := c.Sessions.GetSession(ctx, &apiv1.GetSessionRequest{SessionId: s.GetId()})
		if err != nil {
			return err
		}
		err = a.turn(ctx, c, got.GetSession(), &apiv1.SubmitTurnRequest{SessionId: s.GetId(), Prompt: lines.Text()}, false)
		if ended := (exitError{}); err != nil && !errors.As(err, &ended) {
			return err
		}
	}
}

// session finds the conversation to go on with, or starts one.
func (a *app) session(ctx context.Context, c *client.Client, agent, id string, fresh bool) (*apiv1.Session, error) {
	memory := filepath.Join(a.config, "sessions", safeName(a.login.Server)+"-"+safeName(agent))
	if id == "" && !fresh {
		if b, err := os.ReadFile(memory); err == nil {
			id = strings.TrimSpace(string(b))
			got, err := c.Sessions.GetSession(ctx, &apiv1.GetSessionRequest{SessionId: id})
			if err == nil && got.GetSession().GetState() == "OPEN" && got.GetSession().GetAgent() == agent {
				return got.GetSession(), nil
			}
			id = "" // it ended, or belongs to another login
		}
	}
	if id != "" {
		got, err := c.Sessions.GetSession(ctx, &apiv1.GetSessionRequest{SessionId: id})
		return got.GetSession(), err
	}
	res, err := c.Sessions.CreateSession(ctx, &apiv1.CreateSessionRequest{Agent: agent, IdempotencyKey: newMessageID()})
	if err != nil {
		return nil, err
	}
	return res.GetSession(), writePrivate(memory, []byte(res.GetSession().GetId()+"\n"))
}

// safeName makes a file name of a server's address or an agent's name.
func safeName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '_'
	}, s)
}
