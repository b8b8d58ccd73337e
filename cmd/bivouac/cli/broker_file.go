package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bivouac/cmd/internal/devdir"
	"bivouac/edge/durable"
	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/edge/shellword"
	"bivouac/server/api/apiv1"
	"bivouac/vaultpolicy"
)

// brokerFile is the broker.hcl that is named, or that of this machine's broker.
func brokerFile(named string) string {
	return cmp.Or(named, filepath.Join(devdir.Part(durable.StateDir("bivouac/broker", "bivouac-broker"), "broker", false), "broker.hcl"))
}

// tenantsOf are those that a vault block, and what is issued by its server, name.
func tenantsOf(f vaultpolicy.File) (all []*apiv1.NamedTenant) {
	for _, n := range f.NamedTenants() {
		all = append(all, &apiv1.NamedTenant{Tenant: n.Tenant, Where: n.Where})
	}
	return all
}

// examineBrokerFile has the whole of broker.hcl read by the broker's own program, by the
// rules that count when it starts: what one block sets up is of no use in a file that is
// refused for another. It reports whether the file was refused, and notes what was said.
func examineBrokerFile(ctx context.Context, r *finding.Report, path string) (refused bool) {
	found, err := validated(ctx, path)
	if err != nil {
		r.Warn("configuration", "only what is set up here was read of "+path+": "+err.Error(), "the broker may not start with what else stands in it", "bivouac-broker validate --config "+shellword.Quote(path)+"  (on a machine that has the program)")
		return false
	}
	for _, f := range found {
		f.Where = "here"
		r.Add(f)
		refused = refused || f.Level == finding.Problem
	}
	return refused
}

// validated is what bivouac-broker, beside this program, says of a file.
func validated(ctx context.Context, path string) ([]finding.Finding, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := &tree{bin: filepath.Dir(self)}
	cmd, err := t.command("bivouac-broker", "validate", "--json", "--config", path)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"VAULT_ADDR", "BAO_ADDR", "VAULT_CACERT", "BAO_CACERT", "VAULT_NAMESPACE", "BAO_NAMESPACE", "CONSUL_HTTP_ADDR", "CONSUL_CACERT", "CONSUL_HTTP_TOKEN_FILE"} {
		if value := os.Getenv(name); value != "" {
			cmd.Env = append(cmd.Env, name+"="+value) // what a block may leave out; no token
		}
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	defer stop()
	ended := cmd.Wait()
	var all struct {
		Findings []finding.Finding `json:"findings"`
	}
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		return nil, protocol.Errorf(protocol.CodeFailedPrecondition, "bivouac-broker beside this program does not say it (%v): %s", ended, tailOf(said.String()))
	}
	return all.Findings, nil
}

// tailOf what a program said: its last line.
func tailOf(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return harmless(lines[len(lines)-1])
}

// examineTenants holds the tenants that broker.hcl names against those that the server has
// at which this person is logged in, where one is and may ask.
func (a *app) examineTenants(ctx context.Context, r *finding.Report, named []*apiv1.NamedTenant) {
	c, err := a.connect()
	if err != nil || len(named) == 0 {
		return // an admin of Vault need not be one of Bivouac
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	res, err := c.Operations.Diagnose(ctx, &apiv1.DiagnoseRequest{Tenants: named})
	switch {
	case protocol.CodeOf(err) == protocol.CodePermissionDenied:
		a.examineOwnTenant(ctx, r, named)
	case err != nil:
		r.Warn("tenants", "your server does not say which tenants it has: "+err.Error(), "a wrong one in broker.hcl is not seen", "bivouac doctor")
	}
	for _, f := range res.GetFindings() {
		if f.GetCheck() != "tenants" {
			continue // of an earlier server, which knows no such question
		}
		r.Add(finding.Finding{Where: "server", Check: f.GetCheck(), Level: finding.Level(f.GetLevel()), What: harmless(f.GetWhat()), Why: harmless(f.GetWhy()), Mend: harmless(f.GetMend())})
	}
}

// examineOwnTenant is what somebody can say who learns nothing of other tenants. INV-9.
func (a *app) examineOwnTenant(ctx context.Context, r *finding.Report, named []*apiv1.NamedTenant) {
	who, err := a.api.Principals.WhoAmI(ctx, &apiv1.WhoAmIRequest{})
	if err != nil {
		return // whoever looks for that has bivouac doctor
	}
	id, name := who.GetPrincipal().GetTenantId(), who.GetPrincipal().GetTenantName()
	if slices.ContainsFunc(named, func(n *apiv1.NamedTenant) bool { return n.GetTenant() == id || n.GetTenant() == name }) {
		r.Fine("tenants", "your own, %s, is among those that broker.hcl names", plain(id))
		return
	}
	r.Warn("tenants", fmt.Sprintf("%d named in broker.hcl, and your own, %s, is not among them", len(named), plain(id)),
		"your agents use no credential of it", fmt.Sprintf("tenants = [%q] in the vault block, where you are meant; whether the others exist, an operator is told: bivouac doctor", id))
}
