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

	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/edge/workspace"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// task is what one call of bivouac run asks for.
type task struct {
	agent, session, dir, messageID string
	detach, instead                bool
}

func (a *app) runCommand() *cobra.Command {
	var t task
	cmd := &cobra.Command{
		Use:   "run PROMPT",
		Short: "Give a folder and a task to an agent that works in a sandbox",
		Long: `Packs a git folder as it is now (HEAD, uncommitted and untracked files, nothing that
is ignored) and sends it to a runner, where the agent works on a copy. Your folder does
not change: look at the patch and take it with bivouac apply.

A session's next turn sees the conversation and the files as they were accepted:
--session goes on with one and packs nothing unless you also give --workspace. With
--instead it cancels what the session works on and takes its place, in one step; the
files are those that were accepted before.`,
		Example: `  bivouac run "make the failing test pass"
  bivouac run --session ses_… --instead "no: keep the old name"
  bivouac run --workspace ../other --detach "update the changelog"`,
		Args: cobra.MinimumNArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			prompt := strings.Join(args, " ")
			if err := checkPrompt(prompt); err != nil {
				return err
			}
			if t.instead && t.session == "" {
				return protocol.Errorf(protocol.CodeInvalidArgument, "--instead is about the turn that a session works on: name the session with --session, as `bivouac sessions` lists it")
			}
			return a.run(ctx, c, t, prompt)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&t.agent, "agent", "coder", "agent that does it")
	f.StringVar(&t.dir, "workspace", "", "git folder to work on (default: this one)")
	f.StringVar(&t.session, "session", "", "session to go on with")
	f.BoolVar(&t.detach, "detach", false, "do not wait: print the turn and leave")
	f.BoolVar(&t.instead, "instead", false, "cancel the session's active turn, in the same step")
	f.StringVar(&t.messageID, "message-id", "", "your own id of this task: giving it again returns the same turn")
	return cmd
}

// run packs before it makes a session, so that a folder which cannot be carried
// leaves nothing behind, and asks for the agent before a large one is packed.
func (a *app) run(ctx context.Context, c *client.Client, t task, prompt string) (err error) {
	if t.dir == "" && t.session == "" {
		t.dir = "."
	}
	if t.session == "" {
		if _, err := c.Agents.GetAgent(ctx, &apiv1.GetAgentRequest{Name: t.agent}); err != nil {
			return err
		}
	}
	var pack *os.File
	if t.dir != "" {
		if t.dir, err = filepath.Abs(t.dir); err != nil {
			return err
		}
		if pack, err = a.pack(ctx, t.dir); err != nil {
			return err
		}
		defer os.Remove(pack.Name())
		defer pack.Close()
	}
	s, err := a.runSession(ctx, c, t.agent, t.session, t.messageID)
	if err != nil {
		return err
	}
	req := &apiv1.SubmitTurnRequest{SessionId: s.GetId(), Prompt: prompt, MessageId: t.messageID, Instead: t.instead}
	if pack != nil {
		if req.WorkspaceDigest, err = a.upload(ctx, c, pack); err != nil {
			return err
		}
	}
	return a.work(ctx, c, s, req, t.dir, t.detach)
}

// runSession starts a session for a task, unless one is to go on.
func (a *app) runSession(ctx context.Context, c *client.Client, agent, id, messageID string) (*apiv1.Session, error) {
	if id != "" {
		got, err := c.Sessions.GetSession(ctx, &apiv1.GetSessionRequest{SessionId: id})
		return got.GetSession(), err
	}
	return a.newSession(ctx, c, agent, messageID)
}

// work submits the task, follows it and says how to take the result.
func (a *app) work(ctx context.Context, c *client.Client, s *apiv1.Session, req *apiv1.SubmitTurnRequest, dir string, detach bool) error {
	t, err := a.submit(ctx, c, req)
	if err != nil {
		return err
	}
	if err := a.rememberDir(t, dir); err != nil {
		return err
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
	if err := a.finish(ctx, done, shown); err != nil {
		return err
	}
	if done.GetPatchDigest() == "" && !a.json {
		fmt.Fprintln(a.err, "nothing changed in the workspace")
	}
	a.tellPatch(done)
	return nil
}

// tellPatch says how to take what a turn made, if it made something.
func (a *app) tellPatch(t *apiv1.Turn) {
	if a.troubled != "" && !a.json {
		fmt.Fprintf(a.err, "%s\n", a.troubled)
	}
	if t.GetPatchDigest() != "" && !a.json {
		fmt.Fprintf(a.err, "patch %s\ntake it: bivouac apply %s\n", t.GetPatchDigest(), t.GetId())
	}
}

// pack writes a folder into a temporary file. The caller removes it.
func (a *app) pack(ctx context.Context, dir string) (_ *os.File, err error) {
	f, err := os.CreateTemp("", "bivouac-workspace-*.tar")
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "there is no room for the packed workspace: %w; set TMPDIR to a folder with room", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	p := a.progress()
	defer p.done()
	packer := workspace.Packer{ProgressFunc: func(at workspace.Progress) {
		p.say("packing %s: %d of %d files, %s", dir, at.Files, at.OfFiles, size(at.Bytes))
	}}
	m, err := packer.Pack(ctx, dir, f)
	if err != nil {
		return nil, err
	}
	p.done()
	if !a.json {
		showPacked(a.err, dir, m)
	}
	return f, nil
}

// showPacked says what goes along, and what of the folder does not.
func showPacked(w io.Writer, dir string, m workspace.Manifest) {
	fmt.Fprintf(w, "packed %d files of %s, %s\n", m.Files, dir, size(m.Bytes))
	for _, n := range m.Nested {
		fmt.Fprintf(w, "  %s is a repository of its own: its files go along, its history does not\n", plain(n))
	}
	for _, n := range m.Left {
		fmt.Fprintf(w, "  %s stays here: it is protected\n", plain(n))
	}
}

// upload sends a packed workspace by digest.
func (a *app) upload(ctx context.Context, c *client.Client, f *os.File) (string, error) {
	total, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	p := a.progress()
	defer p.done()
	digest, _, err := c.PutArtifact(ctx, "workspace", &counted{ReadSeeker: f, told: func(at int64) {
		p.say("sending the workspace: %s of %s", size(at), size(total))
	}})
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
		Example: "  bivouac apply --show trn_…\n  bivouac apply trn_…",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			t, patch, err := a.patch(ctx, c, args[0])
			if err != nil {
				return err
			}
			if show && a.json {
				return a.printJSON(map[string]any{"turn": t.GetId(), "patch_digest": t.GetPatchDigest(), "patch": patch}) // bytes: base64
			}
			if show {
				return a.showPatch(patch)
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

// showPatch prints a patch: as it is for another program, and with every rune of
// it visible to a person, who decides on it.
func (a *app) showPatch(patch []byte) error {
	out := a.out
	if a.outIsTerminal() {
		out = legible.Writer{W: a.out}
	}
	_, err := out.Write(patch)
	return err
}

// rememberDir keeps for apply which folder a turn is about: the one that was sent, or
// the one of its session, whose files it goes on with.
func (a *app) rememberDir(t *apiv1.Turn, dir string) error {
	of := a.turnMemory(t.GetSessionId())
	if dir != "" {
		if err := writePrivate(of, []byte(dir+"\n")); err != nil {
			return err
		}
	} else if b, err := os.ReadFile(of); err == nil {
		dir = strings.TrimSpace(string(b))
	} else if errors.Is(err, fs.ErrNotExist) {
		return nil // the session began elsewhere: apply asks
	} else {
		return err
	}
	return writePrivate(a.turnMemory(t.GetId()), []byte(dir+"\n"))
}

func (a *app) rememberedDir(id string) (string, error) {
	b, err := os.ReadFile(a.turnMemory(id))
	if errors.Is(err, fs.ErrNotExist) {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "which folder %s is about is not known here: name it with --workspace", id)
	}
	return strings.TrimSpace(string(b)), err
}
