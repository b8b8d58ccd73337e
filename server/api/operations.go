package api

import (
	"context"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/broker/protocol/brokerv1"
)

// operations are for whoever runs the deployment: what they answer is of all
// tenants.
type operations struct{ Config }

// Diagnose says what the deployment stands on. INV-9: an admin of one tenant
// learns nothing of the others' load.
func (s operations) Diagnose(ctx context.Context, in *apiv1.DiagnoseRequest) (*apiv1.DiagnoseResponse, error) {
	if l := loginOf(ctx); !l.principal.Operator {
		return nil, protocol.Errorf(protocol.CodePermissionDenied,
			"%s may not look at the whole deployment: the principal of `bivouac-server bootstrap` may; or run bivouac-server doctor on its machine", l.principal.Name)
	}
	r, err := s.examined(ctx, in)
	if err != nil {
		return nil, err
	}
	out := &apiv1.DiagnoseResponse{}
	for _, f := range r.All {
		out.Findings = append(out.Findings, &apiv1.Finding{
			Where: f.Where, Check: f.Check, Level: string(f.Level), What: f.What, Why: f.Why, Mend: f.Mend,
		})
	}
	return out, nil
}

// maxNamedTenants that one question may be about.
const maxNamedTenants = 256

func (s operations) examined(ctx context.Context, in *apiv1.DiagnoseRequest) (*finding.Report, error) {
	switch n := len(in.GetTenants()); {
	case n == 0:
		return s.ExamineFunc(ctx), nil
	case n > maxNamedTenants:
		return nil, protocol.Errorf(protocol.CodeInvalidArgument, "%d tenants are asked about, and at most %d can be at once", n, maxNamedTenants)
	}
	var named []*brokerv1.NamedTenant
	for _, t := range in.GetTenants() {
		named = append(named, &brokerv1.NamedTenant{Tenant: t.GetTenant(), Where: t.GetWhere()})
	}
	return s.TenantsFunc(ctx, named), nil
}
