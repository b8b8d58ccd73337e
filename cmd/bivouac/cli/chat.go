package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) chatCommand() *cobra.Command {
	var agent, session, messageID string
	var fresh, detach, instead bool
	cmd := &cobra.Command{
		Use:   "chat [MESSAGE]",
		Short: "Talk to an agent",
		Long: `With a message: one turn, and its answer on standard output. Without: a
conversation, one line a turn; end it with Ctrl-D. What needs your approval is
shown; on a terminal you are asked, otherwise decide with bivouac approve.

The conversation with an agent goes on where it was; --new starts another one.
Leaving does not stop a turn: bivouac turns shows it. A message waits for the one
before it; --instead cancels what the agent works on and takes its place in the
queue, after what waits already.`,
		Example: `  bivouac chat "which folders do you have?"
  bivouac chat --agent coder --new
  bivouac chat --instead "no: the other folder"
  bivouac chat --message-id note-7 "remember the milk"    # may be sent again: one turn`,
		Args: cobra.ArbitraryArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 0 && (detach || instead || messageID != "") {
				return protocol.Errorf(protocol.CodeInvalidArgument, "--detach, --instead and --message-id are about one message: give it as an argument")
			}
			if fresh && session != "" {
				return protocol.Errorf(protocol.CodeInvalidArgument, "--new starts a session and --session goes on with one: give one of them")
			}
			prompt := strings.Join(args, " ")
			if len(args) > 0 {
				if err := checkPrompt(prompt); err != nil {
					return err
				}
			}
			s, err := a.session(ctx, c, agent, session, messageID, fresh)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				return a.turn(ctx, c, s, &apiv1.SubmitTurnRequest{SessionId: s.GetId(), Prompt: prompt, MessageId: messageID, Instead: instead}, detach)
			}
			return a.converse(ctx, c, s)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&agent, "agent", "assistant", "agent to talk to")
	f.StringVar(&session, "session", "", "session to go on with")
	f.BoolVar(&fresh, "new", false, "start a new session")
	f.BoolVar(&detach, "detach", false, "do not wait: print the turn and leave")
	f.BoolVar(&instead, "instead", false, "cancel the session's active turn, in the same step")
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
	if err := a.finish(ctx, done, shown); err != nil {
		return err
	}
	a.tellPatch(done)
	return nil
}

// converse reads a line a turn. A person sees what went wrong and goes on; a
// script ends with the first error, and with how its last failed turn ended.
func (a *app) converse(ctx context.Context, c *client.Client, s *apiv1.Session) error {
	if a.interactive() {
		fmt.Fprintf(a.err, "%s with %s. Ctrl-D ends.\n", s.GetId(), s.GetAgent())
	}
	var failed error
	for {
		if a.interactive() {
			fmt.Fprint(a.err, "> ")
		}
		line, err := a.in.line(ctx)
		if errors.Is(err, io.EOF) {
			return failed
		}
		if err != nil {
			return exitError{protocol.CodeOf(err).ExitCode()}
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		got, err := c.Sessions.GetSession(ctx, &apiv1.GetSessionRequest{SessionId: s.GetId()})
		if err == nil {
			err = a.turn(ctx, c, got.GetSession(), &apiv1.SubmitTurnRequest{SessionId: s.GetId(), Prompt: line}, false)
		}
		switch ended := (exitError{}); {
		case err == nil:
		case errors.As(err, &ended):
			failed = err
		case !a.interactive():
			return err
		default:
			a.exit(err)
		}
		if ctx.Err() != nil {
			return failed
		}
	}
}

// session finds the conversation to go on with, or starts one.
func (a *app) session(ctx context.Context, c *client.Client, agent, id, messageID string, fresh bool) (*apiv1.Session, error) {
	if id != "" {
		got, err := c.Sessions.GetSession(ctx, &apiv1.GetSessionRequest{SessionId: id})
		return got.GetSession(), err
	}
	memory := filepath.Join(a.config, "sessions", safeName(a.login.Server)+"-"+safeName(agent))
	if b, err := os.ReadFile(memory); err == nil && !fresh {
		got, err := c.Sessions.GetSession(ctx, &apiv1.GetSessionRequest{SessionId: strings.TrimSpace(string(b))})
		switch code := protocol.CodeOf(err); {
		case err == nil && got.GetSession().GetState() == "OPEN" && got.GetSession().GetAgent() == agent:
			a.tellVersion(ctx, c, got.GetSession())
			return got.GetSession(), nil
		case err == nil && got.GetSession().GetAgent() == agent:
			a.tellEnded(ctx, c, got.GetSession())
		case err != nil && code != protocol.CodeNotFound && code != protocol.CodeInvalidArgument:
			return nil, err // a conversation is not given up because the server is away
		}
	}
	s, err := a.newSession(ctx, c, agent, messageID)
	if err != nil {
		return nil, err
	}
	return s, writePrivate(memory, []byte(s.GetId()+"\n"))
}

// tellEnded says that the conversation before is over, and why.
func (a *app) tellEnded(ctx context.Context, c *client.Client, s *apiv1.Session) {
	if a.json {
		return
	}
	why := "it is " + s.GetState()
	res, err := c.Events.ListEvents(ctx, &apiv1.ListEventsRequest{SessionId: s.GetId(), AfterSeq: max(0, s.GetLastSeq()-64), Limit: 64})
	if err == nil { // this is a courtesy
		for _, e := range res.GetEvents() {
			if e.GetType() != "session.revoked" && e.GetType() != "session.closed" {
				continue
			}
			var end struct{ Reason, Message string }
			if json.Unmarshal([]byte(e.GetData()), &end) == nil && end.Message+end.Reason != "" {
				why = cmp.Or(end.Message, endings[end.Reason], end.Reason)
			}
		}
	}
	fmt.Fprintf(a.err, "note: the conversation %s has ended: %s\n", s.GetId(), harmless(why))
}

// endings are reasons of a session's end in words.
var endings = map[string]string{
	"idle":     "it was idle for too long",
	"lifetime": "it reached its maximum lifetime",
}

// newSession starts a session. One that begins with a message of the caller's own
// id begins once, however often the message is sent.
func (a *app) newSession(ctx context.Context, c *client.Client, agent, messageID string) (*apiv1.Session, error) {
	key := newMessageID()
	if messageID != "" {
		key = "cli-" + agent + "-" + messageID
	}
	res, err := c.Sessions.CreateSession(ctx, &apiv1.CreateSessionRequest{Agent: agent, IdempotencyKey: key})
	return res.GetSession(), err
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
