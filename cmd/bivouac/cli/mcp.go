package cli

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/spf13/cobra"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) mcpCommand() *cobra.Command {
	return group(&cobra.Command{Use: "mcp", Short: "MCP servers that the broker's file names"}, a.mcpTools())
}

func (a *app) mcpTools() *cobra.Command {
	var tool string
	var words bool
	cmd := &cobra.Command{
		Use:   "tools DESTINATION [--tool NAME]",
		Short: "What an MCP server offers now, as blocks to put into a definition",
		Long: `Lists the tools of an MCP server that broker.hcl names, through the server and its
broker, and calls none of them. Each is printed as a tool block with the digest of its
input schema: put what an agent may call into its definition, write your own
description and effect, and apply it. What the server says of itself is a comment, and
its descriptions of arguments are left out: no model reads them unless you write them
into the definition, where --words puts them for you to read.

A server that later offers another schema under the name, or the name no more, is not
called; run this again to see what it offers then. Admins only.`,
		Example: "  bivouac mcp tools tickets --tool search",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Agents.McpTools(ctx, &apiv1.McpToolsRequest{Destination: args[0]})
			if err != nil {
				return err
			}
			if tool != "" {
				if res.Tools = named(res.Tools, tool); len(res.Tools) == 0 {
					return protocol.Errorf(protocol.CodeNotFound, "the MCP server of destination %s offers no tool %q: bivouac mcp tools %s lists what it has", plain(args[0]), tool, plain(args[0]))
				}
			}
			return a.print(res, func(w io.Writer) { showMCP(w, res, words) })
		}),
	}
	cmd.Flags().StringVar(&tool, "tool", "", "only this one, by its exact name")
	cmd.Flags().BoolVar(&words, "words", false, "keep the server's descriptions of arguments in input: a model reads them then")
	return cmd
}

func named(tools []*apiv1.McpTool, name string) (out []*apiv1.McpTool) {
	for _, t := range tools {
		if t.GetName() == name {
			out = append(out, t)
		}
	}
	return out
}

func showMCP(w io.Writer, r *apiv1.McpToolsResponse, words bool) {
	fmt.Fprintf(w, "# %s: %q %s, MCP %s, tools: %d. Effects are %s; its own words are comments.\n",
		plain(r.GetDestination()), plain(r.GetServerName()), plain(r.GetServerVersion()), plain(r.GetProtocolVersion()), len(r.GetTools()),
		"R0 read, R1 reversible, R2 irreversible, R3 outbound, R4 destructive")
	credential := ""
	if all := r.GetCredentials(); len(all) > 0 {
		credential = all[0]
	}
	for _, t := range r.GetTools() {
		block, err := toolBlock(r.GetDestination(), credential, t, words)
		if err != nil {
			block = fmt.Sprintf("# %s cannot be called: %s\n", plain(t.GetName()), plain(err.Error()))
		}
		fmt.Fprintf(w, "\n%s", block)
	}
}

// unlike a name of a definition.
var unlike = regexp.MustCompile(`[^a-zA-Z0-9._-]`)

// toolBlock is one tool as a definition names it. Nothing of the server's stands in
// it outside of comments and of the schema, in which HCL reads no template.
func toolBlock(destination, credential string, t *apiv1.McpTool, words bool) (string, error) {
	if t.GetProblem() != "" {
		return "", protocol.Errorf(protocol.CodeFailedPrecondition, "%s", t.GetProblem())
	}
	schema, err := offered(t.GetInputSchema(), words)
	if err != nil {
		return "", err
	}
	kind, err := ctyjson.ImpliedType(schema.text)
	if err != nil {
		return "", err
	}
	value, err := ctyjson.Unmarshal(schema.text, kind)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	label := unlike.ReplaceAllString(destination+"."+t.GetName(), "-")
	line("tool %q {", label[:min(len(label), 64)])
	if said := plain(t.GetDescription()); said != "" {
		line("# the server says: %s", said)
	}
	if hints := t.GetHints(); len(hints) > 0 {
		line("# the server hints: %s", plain(strings.Join(hints, ", ")))
	}
	if schema.draft != "" {
		line("# its schema is of %s: what input says is read as 2020-12", plain(schema.draft))
	}
	if schema.wordy {
		line("# its descriptions of arguments are left out of input: --words shows them")
	}
	line("kind = \"mcp\"")
	line("destination = %q", destination)
	if credential != "" {
		line("credential = %q", credential)
	}
	line("tool = %q", t.GetName())
	line("description = \"\" # write your own: the model chooses by it")
	line("effect = \"R3\" # R0 when nothing changes by it")
	line("recovery = \"opaque\" # idempotent when the same arguments twice do what they do once")
	line("schema_digest = %q", t.GetSchemaDigest())
	line("input = %s", hclwrite.TokensForValue(value).Bytes())
	line("}")
	return string(hclwrite.Format([]byte(b.String()))), nil
}
