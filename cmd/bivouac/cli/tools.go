package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) toolsCommand() *cobra.Command {
	return group(&cobra.Command{Use: "tools", Short: "What an agent can use"}, a.toolsEffective())
}

func (a *app) toolsEffective() *cobra.Command {
	var agent, session string
	cmd := &cobra.Command{
		Use:   "effective --agent NAME | --session SESSION",
		Short: "The tools that a model would be offered now, and why not the rest",
		Long: `Asks every question that a turn of yours would be asked, and starts nothing:
offered    a model gets it, and a call of it would pass now
refused    a model gets it, and every call of it would be refused now
withheld   a model does not get it

What its sandboxes may read packages from follows, with what may be asked for there and
the path entry that decides.

With --session, the version of the definition that the session began with is judged.`,
		Example: "  bivouac tools effective --agent assistant",
		Args:    cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			if agent == "" && session == "" {
				return protocol.Errorf(protocol.CodeInvalidArgument, "say whose tools: --agent NAME or --session SESSION; bivouac agents list has the names")
			}
			res, err := c.Agents.EffectiveTools(ctx, &apiv1.EffectiveToolsRequest{Agent: agent, SessionId: session})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { showTools(w, res) })
		}),
	}
	cmd.Flags().StringVar(&agent, "agent", "", "name of the agent")
	cmd.Flags().StringVar(&session, "session", "", "a session of yours with it")
	return cmd
}

func showTools(w io.Writer, r *apiv1.EffectiveToolsResponse) {
	fmt.Fprintf(w, "agent %s  %s\n", plain(r.GetAgent()), r.GetAgentDigest())
	if r.GetModelWhy() == "" {
		fmt.Fprintf(w, "model route %s: open\n", plain(r.GetModelRoute()))
	} else {
		fmt.Fprintf(w, "model route %s: refused by %s: %s\n", plain(r.GetModelRoute()), plain(r.GetModelBy()), plain(r.GetModelWhy()))
	}
	if r.GetModelIntention() != "" {
		fmt.Fprintf(w, "  paths: %s\n", plain(r.GetModelIntention()))
	}
	showOffered(w, r.GetTools())
	showRegistries(w, r.GetRegistries())
}

func showOffered(w io.Writer, tools []*apiv1.EffectiveTool) {
	if len(tools) == 0 {
		fmt.Fprintln(w, "no tool: the definition names none")
		return
	}
	t := newTable(w, "TOOL", "AS", "WHERE", "EFFECT", "ASKS", "STATE", "BECAUSE")
	for _, tool := range tools {
		where, asks, because := tool.GetPlacement(), "no", tool.GetWhy()
		if m := tool.GetMachines(); len(m) > 0 {
			where += " " + strings.Join(m, ", ")
		}
		if tool.GetNeedsApproval() {
			asks = "yes"
		}
		if tool.GetBy() != "" {
			because = tool.GetBy() + ": " + because
		} else if because == "" {
			because = tool.GetIntention()
		}
		t.row(tool.GetRef(), tool.GetAlias(), where, tool.GetEffect(), asks, tool.GetState(), because)
	}
	t.flush()
}

// showRegistries prints what sandboxes may read packages from, as destinations are.
func showRegistries(w io.Writer, all []*apiv1.Registry) {
	if len(all) == 0 {
		return
	}
	t := newTable(w, "PACKAGES FROM", "AT", "SPEAKS", "VERBS", "STATE", "BECAUSE")
	for _, r := range all {
		because := r.GetWhy()
		if r.GetBy() != "" {
			because = r.GetBy() + ": " + because
		} else if r.GetIntention() != "" {
			because = strings.TrimPrefix(because+"; "+r.GetIntention(), "; ")
		}
		t.row(r.GetDestination(), r.GetUrl(), r.GetProtocol(), r.GetVerbs(), r.GetState(), because)
	}
	t.flush()
}
