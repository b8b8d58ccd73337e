package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) principalCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Principals of your tenant", Args: cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Principals.ListPrincipals(ctx, &apiv1.ListPrincipalsRequest{})
			if err != nil {
				return err
			}
			return a.list(res, len(res.GetPrincipals()), "no principal that you may see: bivouac whoami", func(w io.Writer) {
				t := newTable(w, "ID", "NAME", "TENANT", "KIND", "ADMIN", "STATE")
				for _, p := range res.GetPrincipals() {
					state := "active"
					if p.GetDisabled() {
						state = "disabled"
					}
					t.row(p.GetId(), p.GetName(), p.GetTenantName(), p.GetKind(), yes(p.GetAdmin()), state)
				}
				t.flush()
			})
		}),
	}
	disable := &cobra.Command{
		Use:   "disable PRINCIPAL",
		Short: "End everything a principal may do, now",
		Long: `Ends the principal's token, grants, sessions and what runs for it. PRINCIPAL is a
name or an id of bivouac principal list. It is not taken back: add another principal.`,
		Example: "  bivouac principal disable alice",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := principalID(ctx, c, args[0])
			if err != nil {
				return err
			}
			res, err := c.Principals.DisablePrincipal(ctx, &apiv1.DisablePrincipalRequest{PrincipalId: id})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { fmt.Fprintf(w, "%s is disabled\n", res.GetPrincipal().GetName()) })
		}),
	}
	return group(&cobra.Command{Use: "principal", Short: "People and services that may use this server"}, a.principalAdd(), list, disable)
}

func (a *app) principalAdd() *cobra.Command {
	var req apiv1.AddPrincipalRequest
	var tokenFile string
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Add a principal and print its token, once",
		Long: `The server keeps only a hash of the token: it is in this command's answer and nowhere
else. Pass it on by a way that others cannot read; its holder says bivouac login.`,
		Example: "  bivouac principal add alice --token-file alice.token\n  bivouac principal add nightly --kind service",
		Args:    cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			req.Name = args[0]
			if tokenFile != "" { // found out before there is a token to lose
				if err := reserve(tokenFile); err != nil {
					return err
				}
			}
			res, err := c.Principals.AddPrincipal(ctx, &req)
			if err != nil {
				if tokenFile != "" {
					os.Remove(tokenFile)
				}
				return err
			}
			return a.added(res, tokenFile)
		}),
	}
	cmd.Flags().StringVar(&req.Kind, "kind", "user", "user or service")
	cmd.Flags().BoolVar(&req.Admin, "admin", false, "may manage agents, principals, runners, grants and credentials of the tenant")
	cmd.Flags().StringVar(&req.Tenant, "tenant", "", "tenant, made when it does not exist (operators only; default: yours)")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "write the token into this file (0600) instead of printing it")
	return cmd
}

// added shows a new principal, and its token unless a file can keep it.
func (a *app) added(res *apiv1.AddPrincipalResponse, tokenFile string) error {
	var kept error
	if tokenFile != "" {
		if kept = writePrivate(tokenFile, []byte(res.GetToken()+"\n")); kept == nil {
			res.Token = ""
		}
	}
	err := a.print(res, func(w io.Writer) {
		fmt.Fprintf(w, "%s  %s of %s\n", res.GetPrincipal().GetId(), res.GetPrincipal().GetName(), res.GetPrincipal().GetTenantName())
		if res.GetToken() == "" {
			fmt.Fprintf(w, "the token is in %s\n", tokenFile)
			return
		}
		fmt.Fprintf(w, "token, shown once: %s\n", res.GetToken())
	})
	return errors.Join(kept, err)
}
