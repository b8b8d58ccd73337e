package server_test

import (
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
	"bivouac/server/broker/protocol/brokerv1"
)

// tenantsAreHeld proves that a tenant which broker.hcl names is looked for by id and by
// name: in what the broker says of its file, and where somebody asks for a file of their
// own; then nothing else is looked at.
func tenantsAreHeld(t *testing.T, w *world, operator *client.Client, me *apiv1.Principal) {
	t.Helper()
	const stranger = "ten_01arz3ndektsv4rrffq69g5fav"
	const where = "tenants of the vault block in broker.hcl"
	ask := func(named ...*apiv1.NamedTenant) (out []*apiv1.Finding) {
		t.Helper()
		res, err := operator.Operations.Diagnose(t.Context(), &apiv1.DiagnoseRequest{Tenants: named})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range res.GetFindings() {
			if f.GetCheck() == "tenants" {
				out = append(out, f)
			} else if named != nil {
				t.Errorf("beside tenants: %v", f)
			}
		}
		return out
	}
	for _, mine := range []string{me.GetTenantId(), me.GetTenantName()} {
		for tenant, want := range map[string]string{mine: "ok", stranger: "problem", "no-such": "warning"} {
			w.broker.Backend.Tenants = []*brokerv1.NamedTenant{{Tenant: tenant, Where: where}}
			for of, found := range map[string][]*apiv1.Finding{"the broker": ask(), "a person": ask(&apiv1.NamedTenant{Tenant: tenant, Where: where})} {
				if len(found) != 1 || found[0].GetLevel() != want || found[0].GetWhere() != "server" {
					t.Errorf("%s, of %s: %v, want %s", tenant, of, found, want)
				} else if want != "ok" && (!strings.Contains(found[0].GetWhat(), tenant+": "+where) || !strings.Contains(found[0].GetMend(), "bivouac --json whoami")) {
					t.Errorf("%s, of %s, is named by %v", tenant, of, found[0])
				}
			}
		}
	}
	w.broker.Backend.Tenants = nil
	if found := ask(); len(found) != 0 {
		t.Errorf("nobody is named: %v", found)
	}
	if _, err := operator.Operations.Diagnose(t.Context(), &apiv1.DiagnoseRequest{Tenants: make([]*apiv1.NamedTenant, 257)}); protocol.CodeOf(err) != protocol.CodeInvalidArgument {
		t.Errorf("257 at once: %v", err)
	}
}
