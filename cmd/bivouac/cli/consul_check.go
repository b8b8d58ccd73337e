package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"bivouac/consul/client"
	"bivouac/consul/intentions"
	"bivouac/consul/plan"
	"bivouac/edge/finding"
)

func (a *app) consulCheck() *cobra.Command {
	var f consulFlags
	var strict bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what Consul lacks, and what does not work without it",
		Long: `Reads the whole of broker.hcl by the rules of a broker that starts. Compares Consul with what
the broker needs, by your token; and where the broker's token file can be read from here,
asks with it about every destination, and holds Consul's own verdict about a stranger
against what follows from the intentions. Where the broker is a service it also asks
whether the server may call it, and tries the right to its leaf. It changes and deletes nothing.
It ends with 0 unless something does not work; with --strict also a warning counts. On the
broker's own machine bivouac-broker doctor sees the same without your token.` + asConsulAdmin,
		Example: "  bivouac consul check\n  bivouac consul check --broker-config /etc/bivouac/broker.hcl --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, p, err := a.consulPlan(f)
			if err != nil {
				return err
			}
			r := finding.From("here")
			examineBrokerFile(cmd.Context(), r, f.path())
			a.checkConsul(cmd.Context(), r, file, p)
			return a.show(r, strict)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&strict, "strict", false, "fail for warnings too")
	return cmd
}

// checkConsul finds what is wrong from here: first what the admin sees, then what the
// broker does.
func (a *app) checkConsul(ctx context.Context, r *finding.Report, file intentions.File, p plan.Plan) {
	const why = "what Consul has is compared by your token"
	admin, err := a.consulAdmin(file)
	if r.Err("consul.admin", err, why, "CONSUL_HTTP_ADDR, CONSUL_CACERT and CONSUL_HTTP_TOKEN_FILE, as for the consul command line") {
		return
	}
	defer admin.Close()
	if file.ExamineServer(ctx, r, admin) {
		compareConsul(ctx, r, admin, file, p)
	}
	if path := file.TokenPath(); path != "" {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			r.Warn("consul.token", path+" is not on this machine", "what the broker may do is not tried from here", "bivouac-broker doctor  (on the broker's machine)")
			return
		}
	}
	file.ExamineBroker(ctx, r)
}

// compareConsul with the plan.
func compareConsul(ctx context.Context, r *finding.Report, admin *client.Client, file intentions.File, p plan.Plan) {
	d, open, err := p.Diff(ctx, admin)
	if err != nil {
		r.Bad("consul.plan", explainConsul(ctx, admin, err).Error(), "what is missing cannot be said", "CONSUL_HTTP_TOKEN_FILE of an admin; bivouac consul setup --help says what is asked")
		return
	}
	if open {
		r.Warn("consul.acl", "access control of Consul is off", "whoever reaches it may open every path", "acl { enabled = true  default_policy = \"deny\" } in the configuration of its servers")
	}
	for _, x := range d {
		switch x.State {
		case plan.Missing:
			r.Bad("consul.plan", x.Title()+" is missing", x.For, file.Setup())
		case plan.InTheWay:
			what := fmt.Sprintf("%s says %q, and not %q", x.Title(), x.Have, x.Want)
			if x.Kind == plan.Policy {
				what = x.Refusal()
			}
			r.Bad("consul.plan", what, x.For, file.Setup()+"  (says what to do; it changes nothing that somebody decided)")
		default:
			r.Bad("consul.plan", x.Title()+" differs", x.For, "bivouac consul setup"+file.Flags()+"  (shows how), then "+file.Setup())
		}
	}
	if len(d) == 0 {
		r.Fine("consul.plan", "all %d policies, roles, intentions and protocols are there as they must be", len(p.Items))
	}
}
