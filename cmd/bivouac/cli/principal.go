package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
)

func (a *app) principalCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "principal", Short: "People and services that may use this server"}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "Principals of your tenant", Args: cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			res, err := c.Principals.ListPrincipals(ctx, &apiv1.ListPrincipalsRequest{})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
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
		Use: "disable PRINCIPAL", Short: "End everything a principal may do, now", Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			res, err := c.Principals.DisablePrincipal(ctx, &apiv1.DisablePrincipalRequest{PrincipalId: args[0]})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { fmt.Fprintf(w, "%s is disabled\n", res.GetPrincipal().GetName()) })
		}),
	}
	cmd.AddCommand(a.principalAdd(), list, disable)
	return cmd
}

func (a *app) principalAdd() *cobra.Command {
	var req apiv1.AddPrincipalRequest
	var tokenFile string
	cmd := &cobra.Command{
		Use: "add NAME", Short: "Add a principal and print its token, once", Args: cobra.ExactArgs(1),
		RunE: a.call(func(ctx context.Context, c *client.Client, args []string) error {
			req.Name = args[0]
			res, err := c.Principals.AddPrincipal(ctx, &req)
			if err != nil {
				return err
			}
			if tokenFile != "" {
				if err := writePrivate(tokenFile, []byte(res.GetToken()+"\n")); err != nil {
					return err
				}
				res.Token = ""
			}
			return a.print(res, func(w io.Writer) {
				fmt.Fprintf(w, "%s  %s of %s\n", res.GetPrincipal().GetId(), res.GetPrincipal().GetName(), res.GetPrincipal().GetTenantName())
				if tokenFile != "" {
					fmt.Fprintf(w, "the token is in %s\n", tokenFile)
					return
				}
				fmt.Fprintf(w, "token, shown once: %s\n", res.GetToken())
			})
		}),
	}
	cmd.Flags().StringVar(&req.Kind, "kind", "user", "user or service")
	cmd.Flags().BoolVar(&req.Admin, "admin", false, "may manage agents, principals, runners, grants and credentials of the tenant")
	cmd.Flags().StringVar(&req.Tenant, "tenant", "", "tenant, made when it does not exist (operators only; default: yours)")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "write the token into this file (0600) instead of printing it")
	return cmd
}
