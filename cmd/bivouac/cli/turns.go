package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) turnsCommand() *cobra.Command {
	var session string
	var limit int32
	cmd := &cobra.Command{
		Use:   "turns [TURN]",
		Short: "Your newest turns, or one with its actions",
		Long: `Without an argument: the newest turns of all your sessions. With a turn: its state,
what it did, on which machine, what it cost, its answer, and why it ended.`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 1 {
				res, err := c.Turns.GetTurn(ctx, &apiv1.GetTurnRequest{TurnId: args[0]})
				if err != nil {
					return err
				}
				return a.print(res.GetTurn(), func(w io.Writer) { showTurn(w, res.GetTurn(), a.nextOf(ctx, res.GetTurn())) })
			}
			res, err := c.Turns.ListTurns(ctx, &apiv1.ListTurnsRequest{SessionId: session, Page: &apiv1.Page{Limit: limit}})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetTurns()), "no turn yet: bivouac chat begins one", func(w io.Writer) {
				t := newTable(w, "TURN", "SESSION", "STATE", "REASON", "QUEUED", "PROMPT")
				for _, turn := range res.GetTurns() {
					t.row(turn.GetId(), turn.GetSessionId(), turn.GetState(), turn.GetReason(), ago(turn.GetQueuedAt()), clip(turn.GetPrompt(), 48))
				}
				t.flush()
			})
		}),
	}
	cmd.Flags().StringVar(&session, "session", "", "only turns of this session")
	cmd.Flags().Int32Var(&limit, "limit", 20, "how many")
	return cmd
}

// showTurn prints a turn and everything that followed from it.
func showTurn(w io.Writer, t *apiv1.Turn, next string) {
	fmt.Fprintf(w, "%s  %s", t.GetId(), t.GetState())
	if t.GetReason() != "" {
		fmt.Fprintf(w, " (%s)", plain(t.GetReason()))
	}
	fmt.Fprintf(w, "\nsession %s, %s placement, agent %s\nprompt  %s\n", t.GetSessionId(), t.GetPlacement(), t.GetAgentDigest(), clip(t.GetPrompt(), 200))
	if t.GetPosition() > 0 {
		fmt.Fprintf(w, "number %d in the session's queue\n", t.GetPosition())
	}
	if t.GetMessage() != "" {
		label := "why"
		if t.GetState() == "COMPLETED" {
			label = "note"
		}
		fmt.Fprintf(w, "%-7s %s\n", label, harmless(t.GetMessage()))
	}
	if next != "" && t.GetState() != "COMPLETED" {
		fmt.Fprintf(w, "next    %s\n", harmless(next))
	}
	for _, at := range t.GetAttempts() {
		fmt.Fprintf(w, "attempt %s  %s%s  %s\n", at.GetId(), at.GetState(), placeOf(at), plain(at.GetReason()))
	}
	for _, ac := range t.GetActions() {
		reason := plain(ac.GetReason())
		if ac.GetDeniedBy() != "" {
			reason = "denied by " + plain(ac.GetDeniedBy())
		}
		fmt.Fprintf(w, "action  %s  %s  %s %s  %s\n", ac.GetId(), ac.GetState(), plain(ac.GetTool()), clip(ac.GetArguments(), 80), reason)
	}
	fmt.Fprintf(w, "usage   %s\n", usageText(t))
	if t.GetPatchDigest() != "" {
		fmt.Fprintf(w, "patch   %s: bivouac apply %s\n", t.GetPatchDigest(), t.GetId())
	}
	if t.GetAnswer() != "" {
		fmt.Fprintf(w, "\n%s\n", harmless(strings.TrimSpace(t.GetAnswer())))
	}
}

// placeOf is where an attempt is; empty for one that no machine has taken.
func placeOf(at *apiv1.Attempt) string {
	if at.GetRunnerName() == "" {
		return ""
	}
	return fmt.Sprintf(" on %s, fence %s", plain(at.GetRunnerName()), at.GetFence())
}

func (a *app) sessionsCommand() *cobra.Command {
	var limit int32
	cmd := &cobra.Command{
		Use: "sessions", Short: "Your sessions, newest first", Args: cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Sessions.ListSessions(ctx, &apiv1.ListSessionsRequest{Page: &apiv1.Page{Limit: limit}})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetSessions()), "no session yet: bivouac chat begins one", func(w io.Writer) {
				t := newTable(w, "SESSION", "AGENT", "STATE", "QUEUED", "ACTIVE TURN", "CREATED")
				for _, s := range res.GetSessions() {
					t.row(s.GetId(), s.GetAgent(), s.GetState(), fmt.Sprint(s.GetQueuedTurns()), s.GetActiveTurn(), ago(s.GetCreatedAt()))
				}
				t.flush()
			})
		}),
	}
	cmd.Flags().Int32Var(&limit, "limit", 20, "how many")
	var now bool
	closeCmd := &cobra.Command{
		Use:   "close SESSION",
		Short: "Take no more turns, and end with the one that runs",
		Long: `What waits is cancelled; the turn that runs goes on to its end, and the session ends
with it. With --now that turn ends at once, wherever it runs, and nothing that was
allowed to the session is admitted any more. The record stays: bivouac events SESSION.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Sessions.CloseSession(ctx, &apiv1.CloseSessionRequest{SessionId: args[0], Now: now})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { fmt.Fprintf(w, "%s is %s\n", args[0], res.GetSession().GetState()) })
		}),
	}
	closeCmd.Flags().BoolVar(&now, "now", false, "end the turn that runs, too")
	cmd.AddCommand(closeCmd, a.eraseSession())
	return cmd
}

func (a *app) cancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel TURN",
		Short: "Stop a turn; what it did stays recorded",
		Long: `A queued turn never runs. One that runs is stopped, also on the machine where it
runs. An effect that was already sent may have happened; when nobody knows, it is
listed by bivouac unknown.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Turns.CancelTurn(ctx, &apiv1.CancelTurnRequest{TurnId: args[0]})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				t := res.GetTurn()
				if t.GetEndedAt() == nil {
					fmt.Fprintf(w, "%s is being cancelled (%s): bivouac turns %s\n", t.GetId(), t.GetState(), t.GetId())
					return
				}
				fmt.Fprintf(w, "%s  %s\n", t.GetId(), t.GetState())
			})
		}),
	}
}

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain TURN|ATTEMPT|GRANT",
		Short: "Why something waits, and what would change that",
		Long: `Says what a turn or an attempt waits for and how long it has; for one that waits for
a machine, why each of yours does not fit, and the commands that would change it. Of
one that ended: why, who denied what, and what to write into which file where the
broker's paths refused something. Of a grant that was revoked: which sessions, turns
and attempts ended with it.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Turns.Explain(ctx, &apiv1.ExplainRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { showExplained(w, args[0], res) })
		}),
	}
}

// showExplained prints why something waits, or how it ended.
func showExplained(w io.Writer, id string, x *apiv1.ExplainResponse) {
	fmt.Fprintf(w, "%s  %s", id, plain(x.GetState()))
	if x.GetWaitedMs() > 0 {
		fmt.Fprintf(w, ", for %.1f s", float64(x.GetWaitedMs())/1e3)
	}
	fmt.Fprintf(w, "\n%s\n", harmless(x.GetWaitingFor()))
	if len(x.GetRunners()) > 0 {
		t := newTable(w, "RUNNER", "NAME", "FITS", "WHY NOT")
		for _, r := range x.GetRunners() {
			t.row(r.GetRunnerId(), r.GetName(), yes(r.GetEligible()), strings.Join(r.GetReasons(), "; "))
		}
		t.flush()
	}
	showRegistries(w, x.GetRegistries())
	for _, r := range x.GetRemedies() {
		fmt.Fprintf(w, "try: %s\n", plain(r))
	}
	for _, p := range x.GetPastes() {
		fmt.Fprintf(w, "to allow it, put this into %s (it counts at once):\n\n%s\n", plain(p.GetWhere()), harmless(p.GetText()))
	}
}

func (a *app) unknownCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "unknown",
		Short: "Effects whose outcome is not known, with the evidence",
		Long: `An effect that may or may not have happened is never repeated and never shown as
a failure. Look at the evidence, find out, and say what you found; until then the
same effect is refused in all your sessions.`,
		Args: cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Turns.ListUnknown(ctx, &apiv1.ListUnknownRequest{IncludeResolved: all})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetActions()), "nothing is unknown; bivouac unknown --all shows what was resolved", func(w io.Writer) {
				for _, u := range res.GetActions() {
					showUnknown(w, u)
				}
			})
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "also resolved ones")
	var note string
	resolve := &cobra.Command{
		Use:     "resolve ACTION happened|did_not_happen|accepted",
		Short:   "Say what you found out; it changes no state and is kept",
		Example: "  bivouac unknown resolve act_… did_not_happen --note \"not in the ledger\"",
		Args:    cobra.ExactArgs(2),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Turns.ResolveUnknown(ctx, &apiv1.ResolveUnknownRequest{ActionId: args[0], Resolution: args[1], Note: note})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { showUnknown(w, res.GetAction()) })
		}),
	}
	resolve.Flags().StringVar(&note, "note", "", "how you know")
	cmd.AddCommand(resolve)
	return cmd
}

func showUnknown(w io.Writer, u *apiv1.UnknownAction) {
	ac := u.GetAction()
	fmt.Fprintf(w, "%s  %s %s\n  turn %s, session %s, sent %s\n  evidence: %s\n", ac.GetId(), plain(ac.GetTool()), clip(ac.GetArguments(), 120),
		ac.GetTurnId(), u.GetSessionId(), ago(ac.GetIntentAt()), harmless(u.GetEvidence()))
	if u.GetResolution() != "" {
		fmt.Fprintf(w, "  resolved: %s by %s %s  %s\n", u.GetResolution(), plain(u.GetResolvedBy()), ago(u.GetResolvedAt()), plain(u.GetResolutionNote()))
		return
	}
	fmt.Fprintf(w, "  say what happened: bivouac unknown resolve %s happened|did_not_happen|accepted --note \"…\"\n", ac.GetId())
}
