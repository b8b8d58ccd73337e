package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) agentsCommand() *cobra.Command {
	return group(&cobra.Command{Use: "agents", Short: "Agent definitions: HCL, immutable by digest"},
		a.agentsApply(), a.agentsList(), a.agentsShow(), a.agentsExample(), a.agentsRecreate())
}

func (a *app) agentsApply() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply FILE…",
		Short: "Check and store definitions; running turns keep theirs",
		Long: `Checks each file and stores what changed as a new version. A session keeps the
version that it began with. A mistake is named with its file and line, and nothing of
that file is stored; --check stores nothing in any case. A model route or destination
that the broker does not have is a warning: it may come later.`,
		Example: "  bivouac agents apply assistant.hcl\n  bivouac agents apply --check *.hcl",
		Args:    cobra.MinimumNArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			for _, file := range args {
				src, err := os.ReadFile(file)
				if err != nil {
					return protocol.Errorf(protocol.CodeInvalidArgument, "the definition %s cannot be read: %w; bivouac agents example assistant > %s writes one to begin with, bivouac agents show NAME prints one that is stored", file, err, shellword.Quote(file))
				}
				res, err := c.Agents.ApplyAgent(ctx, &apiv1.ApplyAgentRequest{Filename: shownName(file), Source: string(src), DryRun: dryRun})
				if err != nil {
					return err
				}
				if err := a.print(res, func(w io.Writer) {
					what := "unchanged"
					switch {
					case dryRun:
						what = "fine, not stored"
					case res.GetChanged():
						what = fmt.Sprintf("stored as version %d", res.GetAgent().GetVersion())
					}
					fmt.Fprintf(w, "%s  %s  %s\n", res.GetAgent().GetName(), what, res.GetAgent().GetDigest())
				}); err != nil {
					return err
				}
				for _, warning := range res.GetWarnings() {
					if !a.json { // there it is part of the document
						fmt.Fprintf(a.err, "warning: %s: %s\n", shownName(file), plain(warning))
					}
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "check", false, "check only, store nothing")
	return cmd
}

// shownName is how the server's messages name a file: as it was written, unless
// that tells where somebody's files lie.
func shownName(file string) string {
	if filepath.IsAbs(file) {
		return filepath.Base(file)
	}
	return filepath.ToSlash(filepath.Clean(file))
}

func (a *app) agentsList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Agents of your tenant", Args: cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Agents.ListAgents(ctx, &apiv1.ListAgentsRequest{})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetAgents()), "no agent yet: bivouac agents apply FILE stores one", func(w io.Writer) {
				t := newTable(w, "NAME", "VERSION", "PROFILE", "PLACEMENT", "CHANGED", "DIGEST")
				for _, g := range res.GetAgents() {
					t.row(g.GetName(), fmt.Sprint(g.GetVersion()), g.GetProfile(), g.GetPlacement(), ago(g.GetCreatedAt()), g.GetDigest())
				}
				t.flush()
			})
		}),
	}
}

func (a *app) agentsShow() *cobra.Command {
	var digest string
	cmd := &cobra.Command{
		Use:     "show NAME",
		Short:   "The HCL of an agent, as it was applied",
		Example: "  bivouac agents show assistant > assistant.hcl",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Agents.GetAgent(ctx, &apiv1.GetAgentRequest{Name: args[0], Digest: digest})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { fmt.Fprint(w, res.GetAgent().GetSource()) })
		}),
	}
	cmd.Flags().StringVar(&digest, "digest", "", "an earlier version")
	return cmd
}

func (a *app) agentsExample() *cobra.Command {
	return &cobra.Command{
		Use:   "example assistant|coder",
		Short: "A definition to begin with: of an assistant, or of a coder in a sandbox",
		Long: `Prints the definition that bivouac dev begins with; nothing is asked of a server. Say a
route of the broker's file in it, then apply it, and grant it to yourself.`,
		Example:   "  bivouac agents example assistant > assistant.hcl\n  bivouac agents apply assistant.hcl\n  bivouac grant create --agent assistant",
		Args:      cobra.ExactArgs(1),
		ValidArgs: []string{"assistant", "coder"},
		RunE: func(_ *cobra.Command, args []string) error {
			if args[0] != "assistant" && args[0] != "coder" {
				return protocol.Errorf(protocol.CodeInvalidArgument, "there is no example %q: assistant and coder are", args[0])
			}
			src, err := defaults.ReadFile("defaults/" + args[0] + ".hcl")
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]string{"name": args[0], "source": string(src)})
			}
			_, err = a.out.Write(src)
			return err
		},
	}
}

func (a *app) agentsRecreate() *cobra.Command {
	return &cobra.Command{
		Use:   "recreate NAME",
		Short: "A new generation of your instance: what the old one was given never works again",
		Long: `Begins a new generation of the agent that works for you. Every capability of the
earlier one is refused from then on, whoever holds it.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Agents.RecreateInstance(ctx, &apiv1.RecreateInstanceRequest{Agent: args[0]})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { fmt.Fprintf(w, "%s  generation %d\n", res.GetInstanceId(), res.GetGeneration()) })
		}),
	}
}
