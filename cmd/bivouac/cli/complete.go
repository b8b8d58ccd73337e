package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

// completeTimeout: a shell waits for this while a person waits for the shell.
const completeTimeout = 2 * time.Second

// lister gives what a word of a usage line can be, each with what tells it from
// the others, after a tab.
type lister func(ctx context.Context, c *client.Client) ([]string, error)

// listers by the words that stand in usage lines. A word without one is
// completed as a file, where it is FILE, or not at all.
var listers = map[string]lister{
	"TURN": func(ctx context.Context, c *client.Client) ([]string, error) {
		res, err := c.Turns.ListTurns(ctx, &apiv1.ListTurnsRequest{})
		return each(res.GetTurns(), func(t *apiv1.Turn) string {
			return t.GetId() + "\t" + t.GetState() + " " + clip(t.GetPrompt(), 40)
		}), err
	},
	"SESSION": func(ctx context.Context, c *client.Client) ([]string, error) {
		res, err := c.Sessions.ListSessions(ctx, &apiv1.ListSessionsRequest{})
		return each(res.GetSessions(), func(s *apiv1.Session) string {
			return s.GetId() + "\t" + s.GetState() + " " + plain(s.GetAgent()) + " " + ago(s.GetCreatedAt())
		}), err
	},
	"APPROVAL": func(ctx context.Context, c *client.Client) ([]string, error) {
		res, err := c.Approvals.ListApprovals(ctx, &apiv1.ListApprovalsRequest{})
		return each(res.GetApprovals(), func(a *apiv1.Approval) string { return a.GetId() + "\t" + plain(a.GetTool()) }), err
	},
	"ACTION": func(ctx context.Context, c *client.Client) ([]string, error) {
		res, err := c.Turns.ListUnknown(ctx, &apiv1.ListUnknownRequest{})
		return each(res.GetActions(), func(u *apiv1.UnknownAction) string {
			return u.GetAction().GetId() + "\t" + plain(u.GetAction().GetTool())
		}), err
	},
	"MACHINE": func(ctx context.Context, c *client.Client) ([]string, error) {
		res, err := c.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{})
		return each(res.GetRunners(), func(r *apiv1.Runner) string { return plain(r.GetName()) + "\t" + runnerState(r) }), err
	},
	"BINDING": func(ctx context.Context, c *client.Client) ([]string, error) {
		res, err := c.Runners.ListRunners(ctx, &apiv1.ListRunnersRequest{})
		var out []string
		for _, r := range res.GetRunners() {
			out = append(out, each(r.GetBindings(), func(b *apiv1.Binding) string {
				return b.GetId() + "\t" + plain(b.GetPrincipalName()) + " on " + plain(r.GetName())
			})...)
		}
		return out, err
	},
	"PRINCIPAL": func(ctx context.Context, c *client.Client) ([]string, error) {
		res, err := c.Principals.ListPrincipals(ctx, &apiv1.ListPrincipalsRequest{})
		return each(res.GetPrincipals(), func(p *apiv1.Principal) string { return plain(p.GetName()) + "\t" + p.GetKind() }), err
	},
	"GRANT": func(ctx context.Context, c *client.Client) ([]string, error) {
		res, err := c.Grants.ListGrants(ctx, &apiv1.ListGrantsRequest{})
		return each(res.GetGrants(), func(g *apiv1.Grant) string { return g.GetId() + "\t" + plain(g.GetAgent()) }), err
	},
	"AGENT": func(ctx context.Context, c *client.Client) ([]string, error) {
		res, err := c.Agents.ListAgents(ctx, &apiv1.ListAgentsRequest{})
		return each(res.GetAgents(), func(a *apiv1.Agent) string { return plain(a.GetName()) + "\t" + a.GetPlacement() }), err
	},
	"happened": func(context.Context, *client.Client) ([]string, error) {
		return []string{"happened", "did_not_happen", "accepted"}, nil
	},
}

// nameOf is what NAME means below a command.
var nameOf = map[string]string{"agents": "AGENT"}

// flagsOf are flags whose values are listed.
var flagsOf = map[string]string{"agent": "AGENT", "session": "SESSION"}

func each[T any](all []T, text func(T) string) []string {
	out := make([]string, 0, len(all))
	for _, one := range all {
		out = append(out, text(one))
	}
	return out
}

// completeWords lets the shell complete what the usage line of every command
// names, from what the server lists for whoever is logged in.
func (a *app) completeWords(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = a.completeArgs(cmd)
	}
	for flag, word := range flagsOf {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
				return a.complete(cmd.Context(), begun, word)
			}) // fails for a flag that has one already
		}
	}
	for _, sub := range cmd.Commands() {
		a.completeWords(sub)
	}
}

func (a *app) completeArgs(cmd *cobra.Command) cobra.CompletionFunc {
	words := strings.Fields(cmd.Use)[1:]
	return func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(words) || strings.HasPrefix(words[len(args)], "-") {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		word := strings.Trim(words[len(args)], "[]…")
		if strings.HasPrefix(word, "FILE") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		if of := nameOf[cmd.Parent().Name()]; word == "NAME" && of != "" {
			word = of
		}
		return a.complete(cmd.Context(), begun, strings.Split(word, "|")...)
	}
}

// complete asks for what the words can be. Whatever fails completes nothing: a
// shell is no place for an error.
func (a *app) complete(ctx context.Context, begun string, words ...string) (out []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	for _, word := range words {
		list := listers[word]
		if list == nil {
			continue
		}
		c, err := a.connect()
		if err != nil {
			break
		}
		all, err := list(ctx, c)
		if err != nil {
			break
		}
		for _, one := range all {
			if strings.HasPrefix(one, begun) {
				out = append(out, one)
			}
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
