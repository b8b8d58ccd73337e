package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/server/api/apiv1"
	"bivouac/vaultpolicy"
	"bivouac/vaultpolicy/plan"
)

func (a *app) vaultCommand() *cobra.Command {
	return group(&cobra.Command{Use: "vault", Short: "Set up and check a Vault or OpenBao server that holds grants and credentials"},
		a.vaultSetup(), a.vaultCheck())
}

// vaultFlags say for whom a server is set up.
type vaultFlags struct {
	file    string
	tenants []string
}

func (f *vaultFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "broker-config", "", "broker.hcl, whose vault block says what is made (default: that of this machine's broker)")
	cmd.Flags().StringSliceVar(&f.tenants, "tenant", nil, "id of a tenant whose credentials are opened, beside those of the vault block; may be repeated")
}

func (f vaultFlags) path() string { return brokerFile(f.file) }

// words are the flags as they were given, for the commands that are named.
func (f vaultFlags) words() (words string) {
	if f.file != "" {
		words = " --broker-config " + shellword.Quote(f.file)
	}
	for _, t := range f.tenants {
		words += " --tenant " + shellword.Quote(t)
	}
	return words
}

// unasked is the address of a server that nobody asks.
const unasked = "https://vault.invalid:8200"

const asAdmin = `

You are whoever your environment says, as with the vault command line: VAULT_ADDR,
VAULT_CACERT, VAULT_CLIENT_CERT and VAULT_CLIENT_KEY (or BAO_*) where broker.hcl names
another way or none, and the token of VAULT_TOKEN, BAO_TOKEN or ~/.vault-token. No token
is taken from an argument.

The tenants are those of the vault block and of --tenant; where neither names one, your
own at the server that you are logged in to. The credentials are those that broker.hcl
binds to destinations, model routes and registries.`

// vaultPlan reads broker.hcl, and finds out for which tenants. bare: no server is
// asked, so that none needs to be named.
func (a *app) vaultPlan(ctx context.Context, f vaultFlags, bare bool) (vaultpolicy.File, plan.Plan, error) {
	env := os.Getenv
	if bare { // the block must name a server all the same
		env = func(name string) string {
			return cmp.Or(os.Getenv(name), map[string]string{"VAULT_ADDR": unasked}[name])
		}
	}
	file, err := vaultpolicy.ReadFile(f.path(), env)
	switch {
	case errors.Is(err, vaultpolicy.ErrNoVault):
		return file, plan.Plan{}, protocol.Errorf(protocol.CodeFailedPrecondition, "%w: its grants and credentials are in the broker's keyring; what to add to move them is in vaultpolicy/README.md", err)
	case err != nil && f.file == "":
		return file, plan.Plan{}, protocol.Errorf(protocol.CodeOf(err), "%w; where the broker's file is elsewhere, name it: --broker-config FILE", err)
	case err != nil:
		return file, plan.Plan{}, err
	}
	if file.Tenants, err = a.vaultTenants(ctx, file, f.tenants, bare); err != nil {
		return file, plan.Plan{}, err
	}
	file.Config = file.Called(f.words())
	p, err := file.Plan(file.Scope)
	return file, p, err
}

// vaultTenants whose credentials are opened.
func (a *app) vaultTenants(ctx context.Context, file vaultpolicy.File, named []string, bare bool) ([]string, error) {
	all := slices.Clone(file.Tenants)
	for _, t := range named {
		if _, err := protocol.ParseID[protocol.TenantKind](t); err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalidArgument, "--tenant: %w", err)
		}
		if !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	if len(all) > 0 || len(file.Scope.Credentials)+len(file.Scope.Keys) == 0 {
		return all, nil
	}
	const mend = `name it in the vault block of broker.hcl, tenants = ["ten_…"], or with --tenant ten_…; bivouac whoami says yours`
	if bare {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "it is not said which tenant the credentials of broker.hcl belong to: %s", mend)
	}
	c, err := a.connect()
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "it is not said which tenant the credentials of broker.hcl belong to, and you are logged in to no server that knows: %s", mend)
	}
	who, err := c.Principals.WhoAmI(ctx, &apiv1.WhoAmIRequest{})
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeOf(err), "it is not said which tenant the credentials of broker.hcl belong to, and your server does not say it: %w; %s", err, mend)
	}
	id := who.GetPrincipal().GetTenantId()
	fmt.Fprintf(a.err, "note: for your own tenant, %s; name it in the vault block, so that the broker's doctor knows it too: tenants = [%q]\n", plain(id), id)
	return []string{id}, nil
}
