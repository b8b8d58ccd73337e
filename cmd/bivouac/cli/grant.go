package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) grantCommand() *cobra.Command {
	var req apiv1.CreateGrantRequest
	create := &cobra.Command{
		Use:   "create --agent NAME",
		Short: "Let an agent use credentials in your name",
		Long: `An agent works for you under a grant, which names the credentials that the broker
may inject for it. Several add up: each action goes out under the newest that gives
its credential, everything else under the newest of all, from the next turn on. Take
one back with bivouac revoke.`,
		Example: "  bivouac grant create --agent assistant --credential weather-token",
		Args:    cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			if req.Agent == "" {
				return protocol.Errorf(protocol.CodeInvalidArgument, "--agent says who gets the grant: `bivouac agents list` shows them")
			}
			res, err := c.Grants.CreateGrant(ctx, &req)
			if err != nil {
				return err
			}
			a.noteUnset(ctx, c, req.Credentials)
			return a.print(res, func(w io.Writer) {
				g := res.GetGrant()
				fmt.Fprintf(w, "%s  %s may use %s\n", g.GetId(), g.GetAgent(), orNone(g.GetCredentials()))
			})
		}),
	}
	create.Flags().StringVar(&req.Agent, "agent", "", "agent that gets the grant")
	create.Flags().StringSliceVar(&req.Credentials, "credential", nil, "credential it may have injected (repeatable)")

	var all bool
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Grants in force", Args: cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Grants.ListGrants(ctx, &apiv1.ListGrantsRequest{IncludeRevoked: all})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetGrants()), "no grant yet: "+a.grantCommandFor(ctx, c)+" makes one", func(w io.Writer) {
				t := newTable(w, "ID", "AGENT", "PRINCIPAL", "STATE", "CREDENTIALS", "CREATED")
				for _, g := range res.GetGrants() {
					t.row(g.GetId(), g.GetAgent(), g.GetPrincipalName(), grantState(g), orNone(g.GetCredentials()), ago(g.GetCreatedAt()))
				}
				t.flush()
			})
		}),
	}
	list.Flags().BoolVar(&all, "all", false, "also revoked ones")
	return group(&cobra.Command{Use: "grant", Short: "What agents may use in your name"}, create, list, a.grantShow(), a.grantRotate(), a.revokeCommand())
}

// grantCommandFor is the command for the one agent that there is, or for one to be named.
func (a *app) grantCommandFor(ctx context.Context, c *client.Client) string {
	const command = "bivouac grant create --agent "
	switch res, err := c.Agents.ListAgents(ctx, &apiv1.ListAgentsRequest{}); {
	case err == nil && len(res.GetAgents()) == 1:
		return command + plain(res.GetAgents()[0].GetName())
	case err == nil && len(res.GetAgents()) == 0:
		return "bivouac agents apply FILE adds an agent, and " + command + "NAME"
	}
	return command + "NAME, of those of bivouac agents list,"
}

// grantState tells an end that is seen in every layer from one that is not yet.
func grantState(g *apiv1.Grant) string {
	if g.GetPending() != "" {
		return g.GetState() + ", pending"
	}
	return g.GetState()
}

func (a *app) grantShow() *cobra.Command {
	var receipt, proof string
	cmd := &cobra.Command{
		Use:   "show GRANT",
		Short: "What a grant lets its agent do, or how it ended",
		Long: `Shows where each credential of a grant goes, by the agent's newest definition, on which
machines the agent may act, and what would end with the grant. Of one that has ended: why,
wherever it was revoked, and with --receipt the signed receipt over what ended with it.
Where that does not show every layer gone, the broker goes on, and a later receipt that
does is kept beside it: --proof writes it. Until then the end is shown as pending.
Of one in force whose secret part was renewed, --receipt is of the last time.`,
		Example: "  bivouac grant show grt_01…\n  bivouac grant show grt_01… --receipt end.jws --proof gone.jws",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Grants.GetGrant(ctx, &apiv1.GetGrantRequest{GrantId: args[0]})
			if err != nil {
				return err
			}
			signed := res.GetReceipt()
			if res.GetGrant().GetRevokedAt() == nil {
				signed = res.GetRotationReceipt()
			}
			if receipt != "" && signed == "" && res.GetGrant().GetRevokedAt() == nil {
				return protocol.Errorf(protocol.CodeFailedPrecondition, "%s is in force: only an end and a rotation have a receipt; bivouac revoke %s ends it", args[0], args[0])
			}
			if err := a.keepReceipt(receipt, signed); err != nil {
				return err
			}
			if err := a.keepProof(proof, res); err != nil {
				return err
			}
			if res.GetGrant().GetRevokedAt() == nil {
				a.noteUnset(ctx, c, res.GetGrant().GetCredentials())
			}
			return a.print(res, func(w io.Writer) { showGrant(w, res) })
		}),
	}
	cmd.Flags().StringVar(&receipt, "receipt", "", "write the signed receipt of its end, or of its last rotation, into this file")
	cmd.Flags().StringVar(&proof, "proof", "", "write the later signed receipt, which shows as gone what the first did not, into this file")
	return cmd
}

// keepProof writes the receipt that shows every layer of an end gone, where that is not
// the first one.
func (a *app) keepProof(file string, r *apiv1.GetGrantResponse) error {
	g := r.GetGrant()
	switch {
	case file == "":
		return nil
	case g.GetRevokedAt() == nil:
		return protocol.Errorf(protocol.CodeFailedPrecondition, "%s is in force: only an end has a proof; bivouac revoke %s ends it", g.GetId(), g.GetId())
	case g.GetPending() != "":
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the end of %s is pending: %s; bivouac revoke %s probes it again", g.GetId(), plain(g.GetPending()), g.GetId())
	case r.GetProof() == "":
		return protocol.Errorf(protocol.CodeFailedPrecondition, "the first receipt of %s shows every layer gone: bivouac grant show %s --receipt %s", g.GetId(), g.GetId(), shellword.Quote(file))
	}
	return a.keepReceipt(file, r.GetProof())
}

func showGrant(w io.Writer, r *apiv1.GetGrantResponse) {
	g := r.GetGrant()
	fmt.Fprintf(w, "%s  %s  %s works for %s, made %s\n", g.GetId(), g.GetState(), plain(g.GetAgent()), plain(g.GetPrincipalName()), ago(g.GetCreatedAt()))
	if g.GetRevokedAt() != nil {
		fmt.Fprintf(w, "ended %s", ago(g.GetRevokedAt()))
		if why := g.GetRevokedWhy(); why != "" {
			fmt.Fprintf(w, ": %s", plain(why))
		}
		fmt.Fprintln(w)
		switch {
		case g.GetPending() != "":
			fmt.Fprintf(w, "pending: it is refused, and not every layer is seen to be gone: %s\nprobe it again: bivouac revoke %s\n", plain(g.GetPending()), g.GetId())
		case g.GetProvenAt() != nil:
			fmt.Fprintf(w, "seen gone in every layer %s, by a later receipt: bivouac grant show %s --proof FILE\n", ago(g.GetProvenAt()), g.GetId())
		}
		fmt.Fprintf(w, "what ended with it: bivouac explain %s\n", g.GetId())
		return
	}
	showRotation(w, g)
	if len(r.GetCredentials()) == 0 {
		fmt.Fprintln(w, "it gives no credential")
	} else {
		t := newTable(w, "CREDENTIAL", "DESTINATIONS", "TOOLS")
		for _, c := range r.GetCredentials() {
			t.row(c.GetName(), orNothing(c.GetDestinations()), orNothing(c.GetTools()))
		}
		t.flush()
	}
	fmt.Fprintf(w, "machines: %s\n", orNothing(r.GetMachines()))
	fmt.Fprintf(w, "would end with it: %d sessions, %d of them with a turn that runs\n", r.GetSessions(), r.GetRunning())
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return plain(strings.Join(names, " "))
}

// noteUnset names credentials of a grant that have no value: a grant may come first, a
// typing mistake shows, and so does one that was deleted.
func (a *app) noteUnset(ctx context.Context, c *client.Client, names []string) {
	res, err := c.Credentials.ListCredentials(ctx, &apiv1.ListCredentialsRequest{})
	if err != nil || a.json {
		return // the grant is made; this is a courtesy
	}
	set := map[string]bool{}
	for _, cr := range res.GetCredentials() {
		set[cr.GetName()] = true
	}
	for _, name := range names {
		if !set[name] {
			fmt.Fprintf(a.err, "note: %s has no value, and a tool that needs it is refused: bivouac credential set %s\n", plain(name), plain(name))
		}
	}
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "no credential"
	}
	return strings.Join(names, " ")
}

func (a *app) revokeCommand() *cobra.Command {
	var reason, receipt string
	cmd := &cobra.Command{
		Use:   "revoke GRANT",
		Short: "Take a grant back, everywhere, and see that it is gone",
		Long: `Ends the grant in every layer: nothing new is minted, the broker refuses and closes
flows, turns and processes end. Each layer is probed; what each took is printed, and
the signed receipt can be kept with --receipt.

What ends is what stands on this grant: conversations that last ran under it, with
their turns, and actions that use a credential of it. What stands on another grant
goes on; bivouac explain GRANT lists later what ended.`,
		Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Grants.RevokeGrant(ctx, &apiv1.RevokeGrantRequest{GrantId: args[0], Reason: reason})
			if err != nil {
				return err
			}
			if err := a.keepReceipt(receipt, res.GetReceipt()); err != nil {
				return err
			}
			gone := true
			for _, l := range res.GetLayers() {
				gone = gone && l.GetGone()
			}
			if res.GetAlreadyRevoked() && !a.json {
				fmt.Fprintf(a.err, "note: %s was revoked already (%s); its layers were probed again\n", args[0], res.GetGrant().GetRevokedAt().AsTime().Local().Format(time.DateTime))
			}
			if err := a.print(res, func(w io.Writer) {
				t := newTable(w, "LAYER", "GONE", "AFTER", "PROBE", "SEEN")
				for _, l := range res.GetLayers() {
					t.row(l.GetName(), yes(l.GetGone()), fmt.Sprintf("%.1f ms", float64(l.GetTookUs())/1e3), l.GetProbe(), l.GetDetail())
				}
				t.flush()
				showEnded(w, args[0], res.GetEnded())
			}); err != nil {
				return err
			}
			if !gone {
				return protocol.Errorf(protocol.CodeUnavailable,
					"the grant is revoked and nothing is minted under it, but not every layer could be seen to be clear: run bivouac revoke %s again; the broker goes on by itself, and bivouac grant show %s says when it is", args[0], args[0])
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, kept with the record")
	cmd.Flags().StringVar(&receipt, "receipt", "", "write the signed receipt into this file")
	return cmd
}

// keepReceipt writes the receipt into the file that was named, and says how it is
// proven.
func (a *app) keepReceipt(file, receipt string) error {
	switch {
	case file == "":
		return nil
	case receipt == "":
		fmt.Fprintf(a.err, "warning: nothing is written to %s: the broker could not sign a receipt; once it runs, revoke again\n", file)
		return nil
	}
	if err := writePrivate(file, []byte(receipt+"\n")); err != nil {
		return err
	}
	if !a.json {
		fmt.Fprintf(a.err, "receipt written to %s; prove it anywhere: bivouac ledger verify %s --fingerprint %s\n", file, shellword.Quote(file), a.login.RootFingerprint)
	}
	return nil
}

// showEnded lists what ended with a grant.
func showEnded(w io.Writer, grant string, e *apiv1.Ended) {
	if len(e.GetSessions())+len(e.GetTurns())+len(e.GetAttempts()) == 0 {
		fmt.Fprintf(w, "\nno session stood on %s: nothing else ended\n", grant)
		return
	}
	fmt.Fprintf(w, "\nended with %s:\n", grant)
	t := newTable(w, "KIND", "ID")
	for _, kind := range []struct {
		name string
		ids  []string
	}{{"session", e.GetSessions()}, {"turn", e.GetTurns()}, {"attempt", e.GetAttempts()}} {
		for _, id := range kind.ids {
			t.row(kind.name, id)
		}
	}
	t.flush()
}
