package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/usage"
	"bivouac/edge"
	"bivouac/edge/legible"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/secondkey"
	"bivouac/edge/state"
)

func approvalsCommand(dir *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "approvals",
		Short: "Show what waits for your own yes on this machine",
		Long: "Shows the work over which you hold a second key (second_key in edge.hcl) and that waits for your decision.\n" +
			"Nothing of it runs before; whoever runs the server cannot decide it. What you cannot see is shown as an escape.",
		Args: usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, all, err := questions(cmd, *dir)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(all)
			}
			var b strings.Builder
			for _, q := range all {
				showQuestion(&b, d, q)
			}
			if len(all) == 0 {
				b.WriteString("nothing waits for you; " + d.Policy() + " says over what you hold a second key\n")
			}
			_, err = io.WriteString(cmd.OutOrStdout(), b.String())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// questions are what waits, as the daemon that runs on this state says.
func questions(cmd *cobra.Command, dir string) (*state.Dir, []edge.Question, error) {
	d, err := state.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	all, err := edge.AskQuestions(cmd.Context(), d)
	return d, all, err
}

// showQuestion prints everything that a decision binds, so that a terminal shows it.
func showQuestion(b *strings.Builder, d *state.Dir, q edge.Question) {
	line := func(name, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		fmt.Fprintf(b, "  %-11s %s\n", name, legible.Line(text))
	}
	fmt.Fprintf(b, "%s  %s\n", q.Attempt, legible.Line(q.Work))
	line("for", "%s, agent %s, session %s, turn %s (the server says so)", cmp.Or(q.Principal, "?"), cmp.Or(q.Agent, "?"), cmp.Or(q.Session, "?"), cmp.Or(q.Turn, "?"))
	showArguments(b, line, q)
	if q.ApprovedBy != "" {
		line("approved", "by %s at the server, digest %s", q.ApprovedBy, q.ApprovalDigest)
	}
	line("digest", "%s", q.Digest)
	if q.Decision != "" {
		line("decision", "%s; it is carried out when the server has heard of it", q.Decision)
		return
	}
	if own, counts := spelled(q.KeyTTLMs), spelled(q.WaitMs); q.WaitMs > 0 && q.KeyTTLMs > q.WaitMs {
		line("waits", "%s at most: so long an approval of its agent may wait (approvals ttl, at the server); your own ttl is %s", counts, own)
	}
	fmt.Fprintf(b, "  asked %s ago, denied in %s: %s  |  %s\n", time.Since(q.AskedAt).Round(time.Second),
		spelled(q.ExpiresInMs), d.Command("approve "+q.Attempt.String()), d.Command("deny "+q.Attempt.String()))
}

func spelled(ms int64) time.Duration {
	return (time.Duration(ms) * time.Millisecond).Round(time.Second)
}

// showArguments gives the text of a write, and a prompt, lines of their own; all else
// is one line.
func showArguments(b *strings.Builder, line func(name, format string, args ...any), q edge.Question) {
	var write struct {
		Path      string  `json:"path"`
		Content   *string `json:"content"`
		Prompt    *string `json:"prompt"`
		Workspace string  `json:"workspace_digest"`
	}
	switch err := json.Unmarshal([]byte(q.Arguments), &write); {
	case err == nil && q.Work == secondkey.Turn && write.Prompt != nil:
		line("work", "digest %s, files %s", q.ArgumentsDigest, cmp.Or(write.Workspace, "none"))
		showText(b, line, "prompt", *write.Prompt)
		return
	case err != nil || write.Content == nil:
		line("arguments", "%s", q.Arguments)
		return
	}
	line("path", "%s", write.Path)
	if q.PreImageDigest == "" {
		line("replaces", "nothing: the file is new")
	} else {
		line("replaces", "the file with digest %s", q.PreImageDigest)
	}
	showText(b, line, "content", *write.Content)
}

// showText shows all of a text, each of its lines behind a mark that it cannot make.
func showText(b *strings.Builder, line func(name, format string, args ...any), name, text string) {
	line(name, "%d bytes:", len(text))
	for one := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		b.WriteString("    | " + legible.Line(one) + "\n")
	}
}

func approveCommand(dir *string) *cobra.Command {
	var digest string
	cmd := &cobra.Command{
		Use:   "approve ID",
		Short: "Let one piece of work that waits here be done, exactly as shown",
		Long: "Shows what waits as ID and allows it, once. The decision names the digest that was shown;\n" +
			"with --digest it must be the one you saw before.",
		Args:              usage.Exactly(1),
		ValidArgsFunction: waiting(dir),
		RunE:              func(cmd *cobra.Command, args []string) error { return decide(cmd, *dir, args[0], digest, true, "") },
	}
	cmd.Flags().StringVar(&digest, "digest", "", "digest that was shown to you")
	return cmd
}

func denyCommand(dir *string) *cobra.Command {
	var digest, reason string
	cmd := &cobra.Command{
		Use:               "deny ID",
		Short:             "Refuse one piece of work that waits here; the agent is told",
		Example:           "  bivouac-edge deny att_… --reason \"not while I am away\"",
		Args:              usage.Exactly(1),
		ValidArgsFunction: waiting(dir),
		RunE: func(cmd *cobra.Command, args []string) error {
			return decide(cmd, *dir, args[0], digest, false, reason)
		},
	}
	cmd.Flags().StringVar(&digest, "digest", "", "digest that was shown to you")
	cmd.Flags().StringVar(&reason, "reason", "", "what the agent is told")
	return cmd
}

// decide shows what is decided and gives the decision to the daemon.
func decide(cmd *cobra.Command, dir, id, digest string, approve bool, reason string) error {
	d, all, err := questions(cmd, dir)
	if err != nil {
		return err
	}
	q, err := find(d, all, id)
	if err != nil {
		return err
	}
	var b strings.Builder
	showQuestion(&b, d, q)
	done, err := edge.Decide(cmd.Context(), d, edge.Decision{Attempt: q.Attempt, Digest: cmp.Or(digest, q.Digest), Approve: approve, Reason: reason})
	if err != nil {
		return err
	}
	fmt.Fprintf(&b, "%s: %s\n", q.Attempt, done.Decision)
	_, err = io.WriteString(cmd.OutOrStdout(), b.String())
	return err
}

func find(d *state.Dir, all []edge.Question, id string) (edge.Question, error) {
	for _, q := range all {
		if q.Attempt.String() == id {
			return q, nil
		}
	}
	if strings.HasPrefix(id, "apr_") {
		return edge.Question{}, protocol.Errorf(protocol.CodeInvalidArgument, "%s waits at the server and not on this machine: `bivouac approve %s`, or `bivouac deny %s`, where you are logged in", legible.Line(id), legible.Line(id), legible.Line(id))
	}
	return edge.Question{}, protocol.Errorf(protocol.CodeNotFound, "nothing waits for you as %s: see `%s`", legible.Line(id), d.Command("approvals"))
}

// waiting completes the ids of what waits.
func waiting(dir *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (ids []cobra.Completion, _ cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_, all, _ := questions(cmd, *dir) // without a daemon nothing is known
		for _, q := range all {
			ids = append(ids, cobra.CompletionWithDesc(q.Attempt.String(), legible.Line(q.Work)))
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}
