package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/laststart"
	"bivouac/cmd/internal/usage"
	"bivouac/edge/protocol"
	"bivouac/server"
)

// bootstrap makes the first principal while no server runs on the directory.
func (o *options) bootstrap() *cobra.Command {
	b := server.Bootstrap{}
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Make the first principal and write its token to a file",
		Long: `Works on the data directory itself, so no server may run on it. The principal is
an admin of its tenant and may make other tenants. The token file is 0600; when
it already holds a token that works, nothing is done.`,
		Args: usage.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.remember(cmd); err != nil {
				return err
			}
			if err := o.settle(cmd); err != nil {
				return err
			}
			if b.Principal == "" || b.TokenFile == "" {
				return protocol.Errorf(protocol.CodeInvalidArgument, "give --principal NAME and --token-file FILE")
			}
			b.Config = o.config
			p, err := b.Run(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is %s in tenant %s (%s); its token is in %s\nnext: start bivouac-server, then bivouac login %s --token-file %s\n",
				p.Name, p.ID, b.Tenant, p.Tenant, b.TokenFile, api(o.config), b.TokenFile)
			return nil
		},
	}
	cmd.Flags().StringVar(&b.Tenant, "tenant", "local", "tenant of the principal")
	cmd.Flags().StringVar(&b.Principal, "principal", "", "its name")
	cmd.Flags().StringVar(&b.TokenFile, "token-file", "", "file that gets its token")
	return cmd
}

// api is the URL of the server: as its file says it, or as it was started last.
func api(c server.Config) string {
	address, tls := c.PublicAddress, c.TLSCertFile != ""
	if last, err := laststart.Read(c.DataDir); err == nil && address == server.Default().PublicAddress {
		if public := last["public"]; len(public) > 0 {
			address = public[0]
		}
		tls = tls || len(last["tls-cert"]) > 0
	}
	if tls {
		return "https://" + address
	}
	return "http://" + address
}
