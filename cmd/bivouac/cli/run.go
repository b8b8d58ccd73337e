package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
	"bivouac/edge/workspace"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) runCommand() *cobra.Command {
	var agent, session, dir string
	var detach bool
	cmd := &cobra.Command{
		Use:   "run PROMPT",
		Short: "Give a folder and a task to an agent that works in a sandbox",
		Long: `Packs a git folder as it is now (HEAD, uncommitted and untracked files, nothing that
is ignored) and sends it to a runner, where the agent works on a copy. Your folder does
not change: look at the patch and take it with bivouac apply.

A session's next turn sees the conversation and the files as they were accepted:
--session goes on with one and packs nothing unless you also give --workspace.`,
		Args: cobra.MinimumNArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			s, err := a.runSession(ctx, c, agent, session)
			if err != nil {
				return err
			}
			req := &apiv1.SubmitTurnRequest{SessionId: s.GetId(), Prompt: strings.Join(args, " ")}
			if dir == "" && session == "" {
				dir = "."
			}
			if dir != "" {
				if dir, err = filepath.Abs(dir); err != nil {
					return err
				}
				if req.WorkspaceDigest, err = a.upload(ctx, c, dir); err != nil {
					return err
				}
			}
			return a.work(ctx, c, s, req, dir, detach)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&agent, "agent", "coder", "agent that does it")
	f.StringVar(&dir, "workspace", "", "git folder to work on (default: this one)")
	f.StringVar(&session, "session", "", "session to go on with")
	f.BoolVar(&detach, "detach", false, "do not wait: print the turn and leave")
	return cmd
}

// runSession starts a session for a task, unless one is to go on.
func (a *app) runSession(ctx context.Context, c *client.Client, agent, id string) (*apiv1.Session, error) {
	if id != "" {
		got, err := c.Sessions.GetSession(ctx, &apiv1.GetSessionRequest{SessionId: id})
		return got.GetSession(), err
	}
	res, err := c.Sessions.CreateSession(ctx, &apiv1.CreateSessionRequest{Agent: agent, IdempotencyKey: newMessageID()})
	return res.GetSession(), err
}

// work submits the task, follows it and says how to take the result.
func (a *app) work(ctx context.Context, c *client.Client, s *apiv1.Session, req *apiv1.SubmitTurnRequest, dir string, detach bool) error {
	t, err := a.submit(ctx, c, req)
	if err != nil {
		return err
	}
	if dir != "" {
		if err := writePrivate(a.turnMemory(t.GetId()), []byte(dir+"\n")); err != nil {
			return err
		}
	}
	if detach {
		return a.print(t, func(w io.Writer) { fmt.Fprintln(w, t.GetId()) })
	}
	if !a.json {
		fmt.Fprintf(a.err, "%s in %s\n", t.GetId(), t.GetSessionId())
	}
	done, shown, err := a.follow(ctx, c, t, s.GetLastSeq())
	if err != nil {
		return err
	}
	if err := a.finish(done, shown); err != nil {
		return err
	}
	if a.json {
		return nil
	}
	if done.GetPatchDigest() == "" {
		fmt.Fprintln(a.err, "nothing changed in the workspace")
		return nil
	}
	fmt.Fprintf(a.err, "patch %s\ntake it: bivouac apply %s\n", done.GetPatchDigest(), done.GetId())
	return nil
}

// upload packs a folder into a temporary file and sends it by digest.
func (a *app) upload(ctx context.Context, c *client.Client, dir string) (string, error) {
	f, err := os.CreateTemp("", "bivouac-workspace-*.tar")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	m, err := workspace.Pack(ctx, dir, f)
	if err != nil {
		return "", err
	}
	if !a.json {
		fmt.Fprintf(a.err, "packed %d files of %s\n", m.Files, dir)
		for _, n := range m.Nested {
			fmt.Fprintf(a.err, "  %s is a repository of its own: its files go along, its history does not\n", plain(n))
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	digest, _, err := c.PutArtifact(ctx, "workspace", f)
	return digest, err
}

func (a *app) turnMemory(id string) string {
	return filepath.Join(a.config, "turns", safeName(id))
}

func (a *app) applyCommand() *cobra.Command {
	var dir string
	var show bool
	cmd := &cobra.Command{
		Use:   "apply TURN",
		Short: "Take the patch of a turn into your folder",
		Long: `Checks the patch against the folder that the turn was started on (or --workspace)
and applies all of it or nothing. --show prints it instead.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			t, patch, err := a.patch(ctx, c, args[0])
			if err != nil {
				return err
			}
			if show {
				_, err := a.out.Write(patch)
				return err
			}
			if dir == "" {
				if dir, err = a.rememberedDir(t.GetId()); err != nil {
					return err
				}
			}
			if err := workspace.Apply(ctx, dir, patch); err != nil {
				return err
			}
			return a.print(t, func(w io.Writer) { fmt.Fprintf(w, "applied %s to %s\n", t.GetPatchDigest(), dir) })
		}),
	}
	cmd.Flags().StringVar(&dir, "workspace", "", "folder to change (default: the one the turn was started on)")
	cmd.Flags().BoolVar(&show, "show", false, "print the patch and change nothing")
	return cmd
}

// patch fetches what a turn made.
func (a *app) patch(ctx context.Context, c *client.Client, id string) (*apiv1.Turn, []byte, error) {
	res, err := c.Turns.GetTurn(ctx, &apiv1.GetTurnRequest{TurnId: id})
	if err != nil {
		return nil, nil, err
	}
	t := res.GetTurn()
	switch {
	case t.GetEndedAt() == nil:
		return nil, nil, protocol.Errorf(protocol.CodeFailedPrecondition, "%s has not ended (%s): bivouac explain %s says what it waits for", id, t.GetState(), id)
	case t.GetPatchDigest() == "":
		return nil, nil, protocol.Errorf(protocol.CodeFailedPrecondition, "%s changed no file: there is nothing to apply", id)
	case t.GetState() != "COMPLETED":
		return nil, nil, protocol.Errorf(protocol.CodeFailedPrecondition, "%s ended as %s: its patch is not a result; see bivouac turns %s", id, t.GetState(), id)
	}
	var b bytes.Buffer
	if err := c.GetArtifact(ctx, t.GetPatchDigest(), &b); err != nil {
		return nil, nil, err
	}
	return t, b.Bytes(), nil
}

func (a *app) rememberedDir(id string) (string, error) {
	b, err := os.ReadFile(a.turnMemory(id))
	if errors.Is(err, fs.ErrNotExist) {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "%s was not started from this login: name the folder with --workspace", id)
	}
	return strings.TrimSpace(string(b)), err
}
