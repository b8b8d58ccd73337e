package api

import (
	"context"

	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
)

// operations are for whoever runs the deployment: what they answer is of all
// tenants.
type operations struct{ Config }

// Diagnose says what the deployment stands on. INV-9: an admin of one tenant
// learns nothing of the others' load.
func (s operations) Diagnose(ctx context.Context, _ *apiv1.DiagnoseRequest) (*apiv1.DiagnoseResponse, error) {
	if l := loginOf(ctx); !l.principal.Operator {
		return nil, protocol.Errorf(protocol.CodePermissionDenied,
			"%s may not look at the whole deployment: the principal of `bivouac-server bootstrap` may; or run bivouac-server doctor on its machine", l.principal.Name)
	}
	out := &apiv1.DiagnoseResponse{}
	for _, f := range s.ExamineFunc(ctx).All {
		out.Findings = append(out.Findings, &apiv1.Finding{
			Where: f.Where, Check: f.Check, Level: string(f.Level), What: f.What, Why: f.Why, Mend: f.Mend,
		})
	}
	return out, nil
}
