package doctor

import (
	"context"
	"fmt"

	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/broker/protocol/brokerv1"
	"bivouac/server/store"
)

// Tenants says which of those that broker.hcl names the deployment does not have. An id is
// made by a server, and one that is not known is a mistake; a name may be that of a tenant
// to come.
func Tenants(ctx context.Context, r *finding.Report, st *store.Store, named []*brokerv1.NamedTenant) {
	unknown := 0
	for _, n := range named {
		known := false
		err := st.View(ctx, store.AsLoop("doctor"), func(tx *store.Tx) (err error) {
			known, err = tx.TenantKnown(n.GetTenant())
			return err
		})
		if err != nil {
			return // said by database
		}
		if known {
			continue
		}
		unknown++
		what := fmt.Sprintf("this deployment has no tenant %s: %s", n.GetTenant(), n.GetWhere())
		mend := "bivouac --json whoami  (has the id of yours); edit broker.hcl, then restart the broker, and with a vault block: bivouac vault setup --apply"
		if _, err := protocol.ParseID[protocol.TenantKind](n.GetTenant()); err != nil {
			r.Warn("tenants", what, "what is said there of it counts for nobody until there is one of that name", mend)
			continue
		}
		r.Bad("tenants", what, "what is said there counts for nobody, and the tenant that was meant goes without", mend)
	}
	if unknown == 0 && len(named) > 0 {
		r.Fine("tenants", "%d named in broker.hcl, and this deployment has them", len(named))
	}
}
