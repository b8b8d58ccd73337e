package cli

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"bivouac/edge/finding"
	"bivouac/vaultpolicy"
	"bivouac/vaultpolicy/client"
	"bivouac/vaultpolicy/plan"
)

func (a *app) vaultCheck() *cobra.Command {
	var f vaultFlags
	var strict bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what a Vault or OpenBao server lacks, and what does not work without it",
		Long: `Reads the whole of broker.hcl by the rules of a broker that starts, and says all that is
refused; where you are logged in to Bivouac, its tenants too that no server has. Compares
the server with what the broker needs, by your token; and where the files of the broker's
login can be read from here, logs in as the broker and asks for each of its rights. It changes nothing but the life of that one login, which it ends again. It ends
with 0 unless something does not work; with --strict also a warning counts. On the
broker's own machine bivouac-broker doctor sees the same without your token.` + asAdmin,
		Example: "  bivouac vault check\n  bivouac vault check --broker-config /etc/bivouac/broker.hcl --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := finding.From("here")
			refused := examineBrokerFile(cmd.Context(), r, f.path())
			file, p, err := a.vaultPlan(cmd.Context(), f, false)
			switch _, gone := os.Stat(f.path()); {
			case err != nil && (!refused || gone != nil):
				return err
			case err != nil:
				return a.show(r, strict) // for the reasons that were said
			}
			a.examineTenants(cmd.Context(), r, tenantsOf(file))
			a.checkVault(cmd.Context(), r, file, p)
			return a.show(r, strict)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&strict, "strict", false, "fail for warnings too")
	return cmd
}

// checkVault finds what is wrong from here: first what everybody sees, then what the
// admin sees, then what the broker does.
func (a *app) checkVault(ctx context.Context, r *finding.Report, file vaultpolicy.File, p plan.Plan) {
	const why = "what the server has is compared by your token"
	admin, err := a.vaultAdmin(file.Config)
	if admin != nil {
		defer admin.Close()
		file.Address, file.CAFile = admin.way.Address, admin.way.CAFile
	}
	switch {
	case admin == nil:
		r.Bad("vault.admin", err.Error(), why, "vault login; or name the server: VAULT_ADDR")
		return
	case !file.ExamineServer(ctx, r):
		return
	case err != nil:
		r.Bad("vault.admin", err.Error(), why, "vault login  (or VAULT_TOKEN); bivouac-broker doctor on the broker's machine needs no token of yours")
	default:
		admin.compare(ctx, r, file, p)
		file.ExamineEngines(ctx, r, admin.Client, admin.token)
		file.ExamineAudit(ctx, r, admin.token)
	}
	file.ExamineLogin(ctx, r)
}

// compare the server with the plan.
func (v *vaultAdmin) compare(ctx context.Context, r *finding.Report, file vaultpolicy.File, p plan.Plan) {
	if v.ignoresNamespace(ctx) {
		r.Bad("vault.namespace", v.Address()+" takes no notice of namespaces", "everything lies in its root instead of in "+v.way.Namespace, "take the namespace out of broker.hcl and of your environment")
	}
	d, err := p.Diff(ctx, v.Client, v.token)
	if err != nil {
		r.Bad("vault.plan", v.explain(ctx, p, false, err).Error(), "what is missing cannot be said", mendComparison(err))
		return
	}
	for _, x := range d {
		switch {
		case x.Missing:
			r.Bad("vault.plan", x.Title()+" is missing", x.For, file.Setup())
		case x.Fixed:
			r.Bad("vault.plan", x.Title()+" is there and is another: "+changesOf(x), x.For, "another name for it in the vault block of broker.hcl (prefix, mounts or auth): whatever it holds belongs to somebody")
		default:
			r.Bad("vault.plan", x.Title()+" differs: "+changesOf(x), x.For, "bivouac vault setup"+file.Flags()+"  (shows how), then "+file.Setup())
		}
	}
	if len(d) == 0 {
		r.Fine("vault.plan", "all %d mounts, policies, roles and limits are there as they must be", len(p.Items))
	}
}

// mendComparison is what to do about a comparison that failed.
func mendComparison(err error) string {
	if mend := client.Mend(err); mend != "" {
		return mend
	}
	return "vault login with a token that may; bivouac vault setup --help says which is used"
}

// changesOf names the fields that differ; a policy's text is for setup to show.
func changesOf(d plan.Difference) string {
	var fields []string
	for _, c := range d.Changes {
		fields = append(fields, c.Field)
	}
	return strings.Join(fields, ", ")
}
