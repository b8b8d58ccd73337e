package cli

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
	"google.golang.org/protobuf/proto"

	"bivouac/consul/refused"
	"bivouac/edge/protocol"
	"bivouac/edge/runtime/runtimev1"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// errEnded ends a watch when the followed turn is over.
var errEnded = errors.New("the turn is over")

// newMessageID makes the id under which a prompt may be sent again. INV-15.
func newMessageID() string { return "cli-" + strings.ToLower(rand.Text()) }

// submit sends a prompt, and says where in the queue it is.
func (a *app) submit(ctx context.Context, c *client.Client, req *apiv1.SubmitTurnRequest) (*apiv1.Turn, error) {
	if req.MessageId == "" {
		req.MessageId = newMessageID()
	}
	if err := checkPrompt(req.GetPrompt()); err != nil {
		return nil, err
	}
	req.Origin = "cli"
	res, err := c.Turns.SubmitTurn(ctx, req)
	if err != nil {
		return nil, err
	}
	t := res.GetTurn()
	if !a.json && res.GetReplacedTurnId() != "" {
		fmt.Fprintf(a.err, "%s is cancelled: this one goes on instead\n", res.GetReplacedTurnId())
	}
	if !a.json && t.GetPosition() > 1 {
		fmt.Fprintf(a.err, "%s waits as number %d, about %s\n", t.GetId(), t.GetPosition(),
			(time.Duration(res.GetEstimatedWaitMs()) * time.Millisecond).Round(time.Second))
	}
	return t, nil
}

// checkPrompt refuses, before anything is packed or sent, what no agent could read.
func checkPrompt(prompt string) error {
	switch {
	case !utf8.ValidString(prompt):
		return protocol.Errorf(protocol.CodeInvalidArgument, "the prompt is not valid UTF-8, so nothing was sent: convert it, for instance with iconv -t UTF-8")
	case strings.TrimSpace(prompt) == "":
		return protocol.Errorf(protocol.CodeInvalidArgument, "the prompt is blank, so nothing was sent: say what the agent should do")
	}
	return nil
}

// follow prints what a turn does until it ends, and returns it with the text that
// was shown of it. A lost connection resumes; leaving does not stop the turn.
// Events up to after are known to be older than the turn's end.
func (a *app) follow(ctx context.Context, c *client.Client, t *apiv1.Turn, after int64) (done *apiv1.Turn, shown string, err error) {
	if t.GetEndedAt() != nil {
		return t, "", nil // sent before, and over: nothing more will happen
	}
	f := &follower{app: a, client: c, turn: t.GetId(), tools: map[string]string{}, denied: map[string]string{}}
	err = f.watch(ctx, t.GetSessionId(), after)
	f.breakLine()
	a.troubled = f.trouble()
	if err != nil && !errors.Is(err, errEnded) {
		if ctx.Err() != nil {
			fmt.Fprintf(a.err, "left; the turn goes on: bivouac turns %s, or stop it with bivouac cancel %s\n", t.GetId(), t.GetId())
			return nil, "", exitError{protocol.CodeCancelled.ExitCode()}
		}
		return nil, "", err
	}
	done, err = a.settledTurn(ctx, c, t, f.ended)
	if err != nil {
		return nil, "", err
	}
	return done, f.text.String(), nil
}

// follower turns a stream of events into lines for people: the agent's words on
// standard output, everything else on standard error.
type follower struct {
	app    *app
	client *client.Client
	turn   string
	ended  int64             // the event that ended the turn
	live   bool              // a model call is running: deltas are of its answer
	said   strings.Builder   // deltas of that answer
	open   bool              // a line of text has begun
	text   strings.Builder   // that was shown
	tools  map[string]string // by call
	names  map[string]string // of machines, once one was named
	denied map[string]string // who denied, by action
	failed []string          // tool calls, and why
	absent string            // a program that a sandbox did not have
	stuck  string            // what was said of the model, while nothing else happens
	quiet  quiet
	stage  *progress // of the workspace on its way to the machine; nil: there was none
}

func (f *follower) handle(ctx context.Context, m *apiv1.WatchEventsResponse) error {
	f.app.connectionBack()
	if m.GetStaging() == nil {
		f.staged()
	}
	e := m.GetEvent()
	switch {
	case f.app.json:
		return f.handleJSON(e)
	case m.GetStaging() != nil:
		f.staging(ctx, m.GetStaging())
		return nil
	case m.GetTextDelta() != "":
		if f.live && f.app.outIsTerminal() {
			f.said.WriteString(m.GetTextDelta())
			f.say(harmless(m.GetTextDelta()))
		}
		return nil
	case e.GetTurnId() != f.turn:
		return nil
	}
	switch e.GetType() {
	case "turn.ended":
		f.ended = e.GetSeq()
		return errEnded
	case "model.called":
		f.live = true
		f.said.Reset()
	case "approval.requested":
		f.breakLine()
		return f.approval(ctx, e.GetApprovalId())
	case "model.answered":
		f.stuck = ""
		f.answered(e)
	default:
		if line := f.sentence(ctx, e); line != "" {
			f.breakLine()
			fmt.Fprintf(f.app.err, "  · %s\n", line)
		}
	}
	return nil
}

// staging shows on a terminal how far the workspace has come to its machine.
func (f *follower) staging(ctx context.Context, s *apiv1.Staging) {
	if s.GetTurnId() != f.turn {
		return
	}
	if f.stage == nil {
		f.stage = f.app.progress()
	}
	if s.GetSentBytes() >= s.GetOfBytes() {
		f.staged()
		return
	}
	if f.stage.tty {
		f.stage.say("copying the workspace to %s: %s of %s", f.machine(ctx, s.GetRunnerId()), size(s.GetSentBytes()), size(s.GetOfBytes()))
	}
}

// staged takes the line back, before anything else is written.
func (f *follower) staged() {
	if f.stage != nil {
		f.stage.done()
		f.stage.shown = false
	}
}

// handleJSON passes durable events on as they are.
func (f *follower) handleJSON(e *apiv1.Event) error {
	if e.GetTurnId() != f.turn {
		return nil
	}
	if err := f.app.print(e, nil); err != nil {
		return err
	}
	if e.GetType() == "turn.ended" {
		f.ended = e.GetSeq()
		return errEnded
	}
	return nil
}

// answered completes what the deltas showed: they are a preview that may begin
// late or end early, and the event has the whole text.
func (f *follower) answered(e *apiv1.Event) {
	said := f.said.String()
	f.live = false
	f.said.Reset()
	whole := answerText(e.GetPayload())
	if rest, ok := strings.CutPrefix(whole, said); ok {
		f.say(harmless(rest))
	} else {
		f.breakLine()
		f.say(harmless(whole))
	}
	f.breakLine()
}

// answerText reads the assistant's words out of an event's payload.
func answerText(payload string) string {
	b, err := base64.StdEncoding.DecodeString(payload)
	if err != nil {
		return "" // erased
	}
	var m runtimev1.Message
	if err := proto.Unmarshal(b, &m); err != nil {
		return ""
	}
	var text strings.Builder
	for _, block := range m.GetBlocks() {
		text.WriteString(block.GetText())
	}
	return text.String()
}

// outIsTerminal reports a person who reads along.
func (a *app) outIsTerminal() bool {
	f, ok := a.out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func (f *follower) say(text string) {
	if text == "" {
		return
	}
	fmt.Fprint(f.app.out, text)
	f.text.WriteString(text)
	f.open = !strings.HasSuffix(text, "\n")
}

func (f *follower) breakLine() {
	if f.open {
		f.say("\n")
	}
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
	f.quiet.asked = true
	showApproval(f.app.err, ap)
	if !f.app.interactive() {
		return nil
	}
	fmt.Fprint(f.app.err, "allow this? [y/N] ")
	line, err := f.app.in.line(ctx)
	if errors.Is(err, io.EOF) {
		fmt.Fprintln(f.app.err, "\nnot decided")
		return nil
	}
	if err != nil {
		return err
	}
	word := strings.ToLower(strings.TrimSpace(line))
	_, err = f.client.Approvals.DecideApproval(ctx, &apiv1.DecideApprovalRequest{ApprovalId: id, Digest: ap.GetDigest(), Approve: word == "y" || word == "yes"})
	if c := protocol.CodeOf(err); c == protocol.CodeConflict || c == protocol.CodeFailedPrecondition {
		fmt.Fprintln(f.app.err, err) // decided elsewhere, or expired, while the question stood
		return nil
	}
	return err
}

// interactive reports a person at both ends.
func (a *app) interactive() bool {
	_, ok := a.in.terminal()
	return ok && !a.json
}

// finish prints how a turn ended; anything but completed is a failure of the
// command too. An answer that was shown as it came is not repeated.
func (a *app) finish(ctx context.Context, t *apiv1.Turn, shown string) error {
	if err := a.print(t, func(w io.Writer) {
		answer := harmless(strings.TrimSpace(t.GetAnswer()))
		if answer != "" && !strings.HasSuffix(strings.TrimSpace(shown), answer) {
			fmt.Fprintln(w, answer)
		}
		if t.GetState() != "COMPLETED" {
			fmt.Fprintf(a.err, "%s  %s (%s): %s\n", t.GetId(), t.GetState(), plain(t.GetReason()), harmless(t.GetMessage()))
		}
		if t.GetState() == "COMPLETED" && t.GetMessage() != "" { // what its patch does not carry
			fmt.Fprintln(a.err, harmless(t.GetMessage()))
		}
		if next := a.nextOf(ctx, t); next != "" {
			fmt.Fprintln(a.err, next)
		}
		if _, mendable := refused.Parse(t.GetMessage()); mendable && t.GetState() == "FAILED" {
			fmt.Fprintf(a.err, "what to write, and where: bivouac explain %s\n", t.GetId())
		}
		if t.GetState() == "UNKNOWN" {
			fmt.Fprintln(a.err, "the evidence, and saying what became of it: bivouac unknown")
		}
		if t.GetState() != "COMPLETED" || a.outIsTerminal() { // of what went well a script asks bivouac turns
			fmt.Fprintf(a.err, "used    %s\n", usageText(t))
		}
	}); err != nil {
		return err
	}
	switch t.GetState() {
	case "COMPLETED":
		return nil
	case "UNKNOWN":
		return exitError{protocol.CodeOutcomeUnknown.ExitCode()}
	}
	return exitError{codeOfReason(t.GetReason()).ExitCode()}
}
